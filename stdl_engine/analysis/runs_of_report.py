"""The runs behind a report: each in a folder named after its settings, trained once, kept, and resumed if need be."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from .. import checkpoints
from ..building import rule_options
from ..printer import Printer
from ..recipes import RECIPES, Recipe, as_dict
from ..runs import MAY_CHANGE
from ..stopping import Stopped, StopSignals
from ..train import OF_THE_DATA, resume_run, train

DIGITS = 10
"""Hexadecimal digits of a key."""


@dataclass(frozen=True)
class Trained:
    """A network that was trained, or is to be: its settings, and the folder of its run."""

    recipe: Recipe
    path: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The results; the run must be over."""
        return json.loads((self.path / "summary.json").read_text(encoding="utf-8"))

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def seconds(self) -> float:
        """The time that training took, without testing."""
        lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return sum(json.loads(line)["train_seconds"] for line in lines)


def canonical(recipe: Recipe) -> Recipe:
    """The recipe with every open setting filled in, so that all analyses mean the same run."""
    changes: dict[str, Any] = {}
    if recipe.rule == "stdl":
        changes["budget"] = str(rule_options(recipe)["budget"])
    if recipe.rule != "even":
        changes["groups"] = 3  # only "even" reads it
    return replace(recipe, **changes)


def key_of(recipe: Recipe, data_fingerprint: str) -> str:
    """A short name for everything that the outcome of a run depends on."""
    settings = {name: value for name, value in as_dict(recipe).items() if name not in MAY_CHANGE}
    content = json.dumps([settings, data_fingerprint], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:DIGITS]


def train_missing(wanted: Sequence[Trained], printer: Printer, stop: StopSignals) -> None:
    """Train the runs that are missing, one after the other, and print the progress."""
    wanted = list(dict.fromkeys(wanted))
    missing = [run for run in wanted if not run.finished]
    if kept := len(wanted) - len(missing):
        printer.say(f"{kept} of {len(wanted)} runs are there already")
    left = sum(map(_weight, missing))
    seconds_a_weight = _speed([run for run in wanted if run.finished])
    began, done = time.perf_counter(), 0.0
    for number, run in enumerate(missing, 1):
        start = time.perf_counter()
        estimate = "" if seconds_a_weight is None else f", about {in_words(left * seconds_a_weight)} left"
        printer.say(f"run {number} of {len(missing)}: {told(run.recipe)}{estimate}")
        _train_one(run, printer, stop)
        left, done = left - _weight(run), done + _weight(run)
        seconds_a_weight = (time.perf_counter() - began) / done
        took = in_words(time.perf_counter() - start)
        printer.say(f"  test accuracy {run.summary['test_accuracy']:.2%}, {took}")


def _train_one(run: Trained, printer: Printer, stop: StopSignals) -> None:
    quiet = QuietPrinter(printer)
    begun = run.path.is_dir() and any(checkpoints.batches_of(path) for path in checkpoints.saved(run.path))
    try:
        if begun:
            changes = {name: getattr(run.recipe, name) for name in MAY_CHANGE}
            resume_run(run.path, changes, quiet, stop)
        else:
            train(run.recipe, run.path, quiet, stop)
    except Stopped as error:
        raise Stopped(error.exit_code - 128, ": the same command continues from here") from error


class QuietPrinter(Printer):
    """Logs a run's messages without printing them; on a terminal the progress bar of an epoch is shown."""

    def __init__(self, outer: Printer) -> None:
        super().__init__()
        self.console = outer.console

    def _print(self, what: RenderableType, **options: Any) -> None:
        """Nothing."""


def _weight(run: Trained) -> float:
    """How long a run takes, relative to others."""
    return run.recipe.epochs * (1 + run.recipe.steps)


def _speed(runs: Sequence[Trained]) -> float | None:
    return sum(run.seconds() for run in runs) / sum(map(_weight, runs)) if runs else None


def in_words(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def told(recipe: Recipe) -> str:
    """A run in a line."""
    parts = [recipe.rule.upper() + (f" K={recipe.groups}" if recipe.rule == "even" else "")]
    if recipe.rule == "stdl":
        parts += [f"budget {recipe.budget}"] + ([f"variant {recipe.variant}"] if recipe.variant != "stdl" else [])
        parts += ["layer-wise"] if recipe.layerwise else []
    return ", ".join([*parts, recipe.neuron.upper(), f"T={recipe.steps}", f"seed {recipe.seed}"])


def command_of(recipe: Recipe, out: Path | None = None) -> str:
    """The command that trains a recipe."""
    options = [] if out is None else ["--out", str(out)]
    return " ".join(["python -m stdl_engine.train", *map(shlex.quote, [*_words(recipe), *options])])


def _words(recipe: Recipe) -> Iterator[str]:
    base = RECIPES.get(recipe.name, RECIPES["digits"])
    yield base.name
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        if field.name in OF_THE_DATA or value == getattr(base, field.name):
            continue
        name = field.name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        else:
            yield from (f"--{name}", str(value))
