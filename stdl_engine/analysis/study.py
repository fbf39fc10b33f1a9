"""What a report is about: one recipe, some rules, some seeds, and the networks that were trained with them."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import checkpoints
from ..atomic_files import write_atomically
from ..building import build_network, find_device, for_data, load_data, placed, predict_peak
from ..data import Batches, Dataset, fingerprint
from ..printer import Printer
from ..recipes import Recipe, as_dict, by_rule
from ..rules.batch import split_frames
from ..runs import RunFolder, trained_network, versions
from ..stopping import StopSignals
from ..units import label_of, shapes_only
from .runs_of_report import Trained, canonical, key_of

Runs = dict[str, list[Trained]]
SAME = ("model", "width", "neuron", "in_shape", "num_classes", "events", "dataset", "steps")
"""Settings that runs must share to be compared."""


@dataclass(frozen=True)
class Choice:
    """What was asked for."""

    recipe: Recipe
    rules: tuple[str, ...]
    seeds: int
    given: tuple[Path, ...] = ()
    """Folders of existing runs to look at, instead of training."""
    stated_rules: bool = False
    """Whether the user named the rules; then they must be among the given runs."""


class Study:
    """Runs, data and predictions that analyses share."""

    def __init__(self, choice: Choice, out: Path, printer: Printer, stop: StopSignals) -> None:
        self.choice, self.out, self.printer, self.stop = choice, out, printer, stop
        self.given = self._open(choice.given)
        self.recipe = self.given[0].recipe if self.given else choice.recipe
        self.device = find_device(self.recipe.device)
        self._data: dict[Any, tuple[Dataset, str]] = {}
        data, _ = self.data(self.recipe)
        if len(data.test) == 0 or len(data.train) == 0:
            raise ValueError(f"the data {self.recipe.dataset} has no samples to train or test on: add some.")
        self.recipe = for_data(self.recipe, data)
        self.check_rules()

    def _open(self, paths: Sequence[Path]) -> list[Trained]:
        """Existing runs, all of one network on the same data."""
        runs = [Trained(RunFolder.open(path).recipe, path) for path in paths]
        for run in runs:
            if not checkpoints.saved(run.path) or not run.finished:
                raise ValueError(f"the run in {run.path} is not over: continue it with stdl_engine.train --resume.")
            first = runs[0]
            for name in SAME:
                here, there = getattr(run.recipe, name), getattr(first.recipe, name)
                if here != there:
                    raise ValueError(
                        f"{run.path} holds a run of another kind than {first.path}: its {name.replace('_', ' ')} is "
                        f"{here} and not {there}; name runs that differ in rule, budget or seed only."
                    )
        return runs

    def check_rules(self) -> None:
        """Reject rules by which none of the given runs was trained."""
        if self.given and self.choice.stated_rules:
            trained = {run.recipe.rule for run in self.given}
            if missing := [rule for rule in self.choice.rules if rule not in trained]:
                raise ValueError(
                    f"no run that --run names was trained by {', '.join(missing)}: add its folder, or leave it out of "
                    "--rules."
                )

    def data(self, recipe: Recipe) -> tuple[Dataset, str]:
        """The data of a recipe, without augmentation, and its fingerprint."""
        plain = replace(recipe, augment="none")
        key = (plain.dataset, plain.data, plain.steps if plain.events else None, plain.size)
        if key not in self._data:
            data = load_data(plain)
            self._data[key] = data, fingerprint(data)
        return self._data[key]

    def wanted(self, rule: str, seed: int = 0, **changes: Any) -> Trained:
        """The run by a rule with the seed at this offset from the first, and with other changes to the recipe."""
        recipe = replace(by_rule(self.recipe, rule), seed=self.recipe.seed + seed)
        recipe = canonical(replace(recipe, **changes))
        _, data_fingerprint = self.data(recipe)
        return Trained(recipe, self.out / "runs" / f"{rule}-{key_of(recipe, data_fingerprint)}")

    def over_seeds(self, rule: str, **changes: Any) -> list[Trained]:
        """One run for each seed."""
        return [self.wanted(rule, seed, **changes) for seed in range(self.choice.seeds)]

    @functools.cache  # noqa: B019 - there is one study
    def groups(self) -> Runs:
        """The networks to look at, by label."""
        if not self.given:
            return {rule.upper(): self.over_seeds(rule) for rule in self.choice.rules}
        runs = [run for run in self.given if not self.choice.stated_rules or run.recipe.rule in self.choice.rules]
        groups: Runs = {}
        for run in runs:
            alike = [r for r in runs if r.recipe.rule == run.recipe.rule and r.recipe.seed == run.recipe.seed]
            name = run.recipe.rule.upper() + (f" ({run.path.name})" if len(alike) > 1 else "")
            groups.setdefault(name, []).append(run)
        return groups

    def networks(self) -> list[Trained]:
        return [run for runs in self.groups().values() for run in runs]

    @property
    def reference_label(self) -> str:
        """BPTT if it is among the rules, otherwise the first one."""
        groups = self.groups()
        return next((label for label in groups if label.startswith("BPTT")), next(iter(groups)))

    def reference(self) -> list[Trained]:
        return self.groups()[self.reference_label]

    def yardstick(self) -> list[Trained]:
        """A network by the reference rule with another seed, where there is only one such network and more may be
        trained."""
        first = self.reference()
        return [self.wanted(first[0].recipe.rule, 1)] if len(first) == 1 and not self.given else []

    def network(self, run: Trained) -> nn.Sequential:
        """The trained network of a run."""
        model = trained_network(RunFolder.open(run.path), best=False).model
        if self.recipe.channels_last:
            model.to(memory_format=torch.channels_last)
        return model.to(self.device)

    @functools.cache  # noqa: B019 - there is one study
    def unit_names(self) -> list[str]:
        """The units of the network by number and name."""
        with shapes_only():
            *units, _ = build_network(self.recipe)
        return [f"{number} {label_of(unit)}" for number, unit in enumerate(units, 1)]

    def test_batches(self, samples: int, batch: int, *, full: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """The test set, or this many samples of a larger one in shuffled order; with `full` only full batches."""
        return self._batches(self.data(self.recipe)[0].test, samples, batch, full)

    def train_batches(self, samples: int, batch: int, *, full: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """The same for the training set, without augmentation."""
        return self._batches(self.data(self.recipe)[0].train, samples, batch, full)

    def _batches(self, source: Any, samples: int, batch: int, full: bool) -> Iterator[tuple[Tensor, Tensor]]:
        drawn = full or len(source) > samples
        size = min(batch, len(source))
        batches = Batches(source, batch_size=size, training=drawn, workers=self.recipe.workers)
        return itertools.islice(batches.epoch(0), max(1, samples // size))

    def count_of_test(self, samples: int, batch: int) -> int:
        """How many samples the full batches of `test_batches` have."""
        size = min(batch, length := len(self.data(self.recipe)[0].test))
        return min(length // size, max(1, samples // size)) * size

    def frames(self, x: Tensor) -> list[Tensor]:
        """A batch as T frames on the device."""
        return split_frames(placed(self.recipe, x, self.device), self.recipe.steps, self.recipe.in_shape)

    def peak(self, recipe: Recipe) -> dict[str, Any]:
        """The predicted peak of a training step, kept from one report to the next."""
        settings = {**as_dict(recipe), "seed": 0, "data": "", "versions": versions()}
        folder = self.out / "plans"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{key_of(recipe, json.dumps(settings, sort_keys=True))}.json"
        if not path.is_file():
            found = predict_peak(recipe)
            figures = {"peak_bytes": found.peak_bytes, "parts": found.parts, "subnetworks": found.subnetworks}
            write_atomically(path, json.dumps(figures) + "\n")
        return json.loads(path.read_text(encoding="utf-8"))

    def described(self, recipe: Recipe | None = None, seeds: int | None = None) -> str:
        """What was run, for a caption."""
        r, seeds = recipe or self.recipe, seeds or self.choice.seeds
        drawn = f"seed {r.seed}" if seeds == 1 else f"seeds {r.seed} to {r.seed + seeds - 1}, mean ± deviation"
        if self.given and recipe is None:
            drawn = f"runs {', '.join(run.path.name for run in self.given)}"
        epochs = f"{r.epochs} epoch{'' if r.epochs == 1 else 's'}"
        return (
            f"{r.model} at width {r.width:g} on {r.dataset}, {r.neuron.upper()}, T={r.steps}, {epochs}, batch "
            f"{r.batch_size}, {r.optimizer} at {r.lr:g}, {r.memory} memory, {drawn}"
        )
