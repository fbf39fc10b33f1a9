"""Linear CKA: how similarly two trained networks represent the same samples, unit by unit.

The representation of a sample in a unit is the unit's firing rate, its output averaged over time. Similarity is the
unbiased HSIC of two Gram matrices, summed over minibatches in float64 before the ratio is taken, so that its
expectation does not depend on the size of a minibatch:

    HSIC(K, L) = 1/(n(n-3)) · Σ_ij K̂_ij L̂_ij        CKA = Σ HSIC(K, L) / sqrt(Σ HSIC(K, K) · Σ HSIC(L, L))

K̂ is K without its diagonal, centred so that each of its rows and columns adds up to zero. A unit that gives the same
output for every sample has no similarity to anything: its CKA is undefined, None.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from . import charts
from .exhibits import Exhibit, Section, mean_of
from .features import mean_maps
from .runs_of_report import Trained
from .study import Study

SAMPLES, BATCH = 1024, 128
"""How many test samples are used at most, and how many at a time."""
Values = list[list[float | None]]
"""CKA by unit of the first network, then by unit of the second; None is undefined."""
LEAST = 4
"""The fewest samples for an unbiased HSIC."""
ROUNDING = 1e-10
"""If centring leaves less of a Gram matrix than this, relative to the matrix, the rest is only rounding."""


def centred_gram(maps: Tensor) -> Tensor:
    """The Gram matrix of n maps in float64, without its diagonal and centred, as a vector; zero where the maps do not
    differ, or only one of them does."""
    n = len(maps)
    if n < LEAST:
        raise ValueError(f"CKA was asked of {n} samples: it takes {LEAST} or more.")
    x = maps.flatten(1).double()
    size = x.norm() ** 2 / math.sqrt(n)  # of the matrix before any mean is subtracted
    x = x - x.mean(0)
    gram = x @ x.T
    gram.fill_diagonal_(0)
    rows = gram.sum(1) / (n - 2)
    gram += rows.sum() / (n - 1) - rows[:, None] - rows[None, :]
    gram.fill_diagonal_(0)
    return torch.zeros(n * n, dtype=torch.float64) if gram.norm() <= ROUNDING * size else gram.flatten()


class Similarity:
    """CKA between all units of one network and all units of another, from minibatches one after the other."""

    def __init__(self) -> None:
        self._cross = torch.zeros(())
        self._own = [torch.zeros(()), torch.zeros(())]

    def add(self, first: Tensor, second: Tensor) -> None:
        """Add a minibatch: the centred Gram matrices of each network's units, [units, n²], for the same n samples."""
        n = math.isqrt(first.shape[1])
        weight = 1 / (n * (n - 3))
        self._cross = self._cross + weight * (first @ second.T)
        self._own = [own + weight * (grams**2).sum(1) for own, grams in zip(self._own, (first, second), strict=True)]

    def values(self) -> Values:
        """CKA by unit of the first network, then by unit of the second; None is undefined."""
        first, second = self._own
        scale = torch.sqrt(first[:, None] * second[None, :])
        return [
            [cross / own if own > 0 else None for cross, own in zip(*rows, strict=True)]
            for rows in zip(self._cross.tolist(), scale.tolist(), strict=True)
        ]


def needs(study: Study) -> list[Trained]:
    """Networks by every rule, and a second one by the reference rule."""
    return [*study.networks(), *study.yardstick()]


def analyse(study: Study) -> Section:
    pairs, missing = pairs_to_compare(study)
    found = compare(study, pairs)
    labels = list(dict.fromkeys(label for label, _, _ in pairs))
    names = study.unit_names()
    by_label = {label: [found[place] for place, pair in enumerate(pairs) if pair[0] == label] for label in labels}
    rows, series, shown = [], [], []
    for label in labels:
        diagonals = [[values[unit][unit] for unit in range(len(names))] for values in by_label[label]]
        means, deviations = zip(*(mean_of(column) for column in zip(*diagonals, strict=True)), strict=True)
        rows += [(label, *row) for row in zip(names, means, deviations, strict=True)]
        overall = _mean_of_defined(means)
        series.append(charts.Series(label, means, deviations, dashed="another seed" in label))
        shown.append((label, _said(overall), _undefined(names, means)))
    samples = study.count_of_test(SAMPLES, BATCH)
    ran = f"{study.described()}; {samples} test samples in minibatches of {min(BATCH, samples)}, unbiased HSIC."
    reference = study.reference_label
    exhibits = [
        Exhibit(
            "cka", f"Similarity to {reference}, unit by unit",
            f"Linear CKA of firing rates (mean over time) between the same units of two trained networks: each rule "
            f"against {reference}. {ran} {missing}",
            ("compared", "unit", "cka", "deviation"), rows,
            [charts.lines(f"Linear CKA against {reference}", "unit", "CKA (1 = the same up to rotation and scale)",
                          names, series, top=1.0, bottom=None)],
            table=(("compared", "mean over units", "undefined units"), shown),
        ),
        _all_pairs(labels, names, by_label, ran, reference),
    ]  # fmt: skip
    text = (
        "1 means that a unit of both networks tells the same samples apart in the same way. The line of another seed "
        "is the yardstick: two networks by the same rule that began with other random weights."
    )
    return Section("Representation similarity (CKA)", text, exhibits)


def pairs_to_compare(study: Study) -> tuple[list[tuple[str, Trained, Trained]], str]:
    """What is compared: label, network, and network of the reference; and what a reader has to know about it.

    Networks that begin with the same random weights stay more alike than others, so their seeds differ where possible.
    """
    references = [*study.reference(), *study.yardstick()]
    count = len(references)
    ring = range(count if count > 2 else count - 1)
    another = f"{study.reference_label}, another seed"
    pairs = [(another, references[place], references[(place + 1) % count]) for place in ring]
    for label, runs in study.groups().items():
        if label != study.reference_label:
            pairs += [(label, run, _of_another_seed(run, references, place)) for place, run in enumerate(runs)]
    if not pairs:
        raise ValueError(
            "CKA compares networks, and there is only one: name a second rule by --rules, or a second folder by --run."
        )
    notes = [] if count > 1 else [f"There is no second network by {study.reference_label} to measure against."]
    if alike := dict.fromkeys(label for label, one, two in pairs if one.recipe.seed == two.recipe.seed):
        notes.append(f"{' and '.join(alike)} began with the same random weights as what it is compared with.")
    return pairs, " ".join(notes) or "The seeds of two networks that are compared differ."


def _of_another_seed(run: Trained, references: Sequence[Trained], place: int) -> Trained:
    """The next of the reference's networks that began with other weights; if none did, any."""
    following = [references[(place + step) % len(references)] for step in range(1, len(references) + 1)]
    return next((other for other in following if other.recipe.seed != run.recipe.seed), following[0])


@torch.no_grad()
def compare(study: Study, pairs: Sequence[tuple[str, Trained, Trained]]) -> list[Values]:
    """CKA of all units with all units, pair by pair; each network sees each sample once."""
    networks = {run: study.network(run) for _, *two in pairs for run in two}
    found = [Similarity() for _ in pairs]
    for x, _ in study.test_batches(SAMPLES, BATCH, full=True):
        grams = {
            run: torch.stack([centred_gram(maps.cpu()) for maps in mean_maps(model, study.frames(x))])
            for run, model in networks.items()
        }
        for similarity, (_, first, second) in zip(found, pairs, strict=True):
            similarity.add(grams[first], grams[second])
    return [similarity.values() for similarity in found]


def _all_pairs(
    labels: Sequence[str], names: Sequence[str], by_label: dict[str, list[Values]], ran: str, reference: str
) -> Exhibit:
    rows, pictures = [], []
    for label in labels:
        cells = [
            [mean_of([values[r][c] for values in by_label[label]])[0] for c in range(len(names))]
            for r in range(len(names))
        ]
        rows += [(label, names[r], names[c], cells[r][c]) for r in range(len(names)) for c in range(len(names))]
        pictures.append(
            charts.grid(label, f"unit of {reference}", f"unit of {label.split(',')[0]}", names, names, cells)
        )
    return Exhibit(
        "cka_all_pairs", "Similarity of all units with all units",
        f"Linear CKA as above, of every unit of one network (rows) with every unit of {reference}'s (columns). {ran}",
        ("compared", "unit", "unit_of_reference", "cka"), rows, pictures,
    )  # fmt: skip


def _undefined(names: Sequence[str], values: Sequence[float | None]) -> str:
    return ", ".join(name for name, value in zip(names, values, strict=True) if value is None) or "none"


def _mean_of_defined(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _said(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
