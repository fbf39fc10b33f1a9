"""Linear probes: how well a linear classifier does on the output of each unit of a frozen network.

Features are a unit's output averaged over time and pooled. The classifier is ridge regression onto the classes, solved
in closed form in float64; its strength is chosen on a fifth of the training samples, and then all of them are used.
Accuracy is measured on the test set, which is used for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from . import charts
from .exhibits import Exhibit, Section, mean_of, said
from .features import mean_maps, pooled
from .runs_of_report import Trained
from .study import Study

TRAIN_SAMPLES, TEST_SAMPLES, BATCH = 5000, 10_000, 100
"""How many samples are used at most, and how many at a time."""
FEATURES = 512
"""The largest number of features of a probe."""
STRENGTHS = tuple(10.0**power for power in range(-4, 4))
"""The strengths of the ridge that are tried, relative to the variance of a feature."""


class Ridge:
    """Ridge regression of classes on features, at any strength from one decomposition."""

    def __init__(self, x: Tensor, y: Tensor, num_classes: int) -> None:
        x = x.double()
        self.mean, self.scale = x.mean(0), x.std(0, correction=0)
        self.scale[self.scale == 0] = 1.0  # a feature that never changes is zero once its mean is subtracted
        targets = nn.functional.one_hot(y, num_classes).double()
        self.offset = targets.mean(0)
        x = (x - self.mean) / self.scale
        self.values, self.vectors = torch.linalg.eigh(x.T @ x / len(x))
        self.projected = self.vectors.T @ (x.T @ (targets - self.offset) / len(x))

    def accuracy(self, x: Tensor, y: Tensor, strength: float) -> float:
        """The share of samples whose class has the largest value."""
        weights = self.vectors @ (self.projected / (self.values.clamp(min=0)[:, None] + strength))
        said_class = ((x.double() - self.mean) / self.scale @ weights + self.offset).argmax(1)
        return (said_class == y).double().mean().item()


def probe(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], num_classes: int) -> float:
    """Accuracy on the test samples of the best linear classifier found on the training samples."""
    x, y = train
    kept = max(1, len(x) // 5)
    tried = Ridge(x[kept:], y[kept:], num_classes)
    best = max(STRENGTHS, key=lambda strength: tried.accuracy(x[:kept], y[:kept], strength))
    return Ridge(x, y, num_classes).accuracy(*test, best)


def needs(study: Study) -> list[Trained]:
    return study.networks()


def analyse(study: Study) -> Section:
    names = ["input", *study.unit_names()]
    rows, series, shown = [], [], []
    pixels = probe_input(study)
    for label, runs in study.groups().items():
        found = [[pixels, *probe_units(study, run)] for run in runs]
        means, deviations = zip(*(mean_of(column) for column in zip(*found, strict=True)), strict=True)
        rows += [(label, *row) for row in zip(names, means, deviations, strict=True)]
        series.append(charts.Series(label, [100 * mean for mean in means], [100 * (d or 0) for d in deviations]))
        early = next(name for name, mean in zip(names, means, strict=True) if mean >= 0.95 * max(means))
        shown.append((label, said([one[1] for one in found], 100, 1), said([one[-1] for one in found], 100, 1), early))
    ran = (
        f"{study.described()}. Ridge regression on at most {FEATURES} features, fitted on up to {TRAIN_SAMPLES} "
        "training samples and tested on the test set."
    )
    exhibit = Exhibit(
        "probe", "Linear probe of every unit",
        f"Accuracy of a linear classifier on each unit's output, averaged over time and pooled; the network is frozen. "
        f"{ran}",
        ("rule", "unit", "accuracy", "deviation"), rows,
        [charts.lines("Linear separability, unit by unit", "unit", "probe accuracy on the test set, %", names, series,
                      bottom=None)],
        table=(("rule", "first unit, %", "last unit, %", "within 5% of its best from"), shown),
    )  # fmt: skip
    text = (
        "How early do classes become linearly separable? Under local rules this tends to be early, as each unit has to "
        "classify by itself, and later units add less."
    )
    return Section("Linear separability (probes)", text, [exhibit])


def probe_units(study: Study, run: Trained) -> list[float]:
    """Held-out accuracy of a probe on each unit of a trained network."""
    model = study.network(run)
    sets = [features_of(study, model, batches) for batches in _both(study)]
    (train, train_labels), (test, test_labels) = sets
    classes = study.recipe.num_classes
    return [probe((x, train_labels), (held_out, test_labels), classes) for x, held_out in zip(train, test, strict=True)]


def probe_input(study: Study) -> float:
    """The same for the input itself, which a unit has to beat."""
    sets = []
    for batches in _both(study):
        sums = ((torch.as_tensor(sum(study.frames(x))), y) for x, y in batches)
        pairs = [(pooled(total / study.recipe.steps, FEATURES).cpu(), y) for total, y in sums]
        features, labels = map(torch.cat, zip(*pairs, strict=True))
        sets.append((features, labels))
    train, test = sets
    return probe(train, test, study.recipe.num_classes)


def _both(study: Study) -> tuple[Iterable, Iterable]:
    return study.train_batches(TRAIN_SAMPLES, BATCH), study.test_batches(TEST_SAMPLES, BATCH)


def features_of(study: Study, model: nn.Sequential, batches: Iterable) -> tuple[list[Tensor], Tensor]:
    """The features of every unit, and the labels."""
    features, labels = [], []
    for x, y in batches:
        features.append([pooled(maps, FEATURES).cpu() for maps in mean_maps(model, study.frames(x))])
        labels.append(y)
    return [torch.cat(parts) for parts in zip(*features, strict=True)], torch.cat(labels)
