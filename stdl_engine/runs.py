"""The folder of a run: its settings, the metrics of each epoch, curves, checkpoints, and a summary at the end.

config.json      the recipe, every field of it
plan.txt         subnetworks and auxiliary networks
metrics.jsonl    one line per epoch
curves.png       loss and accuracy
tensorboard/     the same and more, for TensorBoard
log.txt          what was printed, with the time
checkpoint-*.pt  the last two
best-*.pt        the weights of the best epoch
summary.json     once the run is over
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from . import __version__, checkpoints, recipes
from .building import build_network
from .curves import draw
from .locked_folder import LockedFolder
from .meter import speed
from .recipes import Recipe

PACKAGES = ("torch", "torchvision", "triton", "numba", "numpy", "spikingjelly")
MAY_CHANGE = ("data", "workers", "device", "on_bad_sample", "malloc")
"""Settings that may change when a run is resumed: where its data is and what it runs on."""


class RunFolder(LockedFolder):
    """A run's files. None is ever half-written, except that the log may lack its last line."""

    settings_file = "config.json"
    what = "run"

    def refuse_if_taken(self) -> None:
        """Reject a folder with a comparison, or with a run that has trained on anything; a run that has trained nothing
        may begin again."""
        if (self.path / "compare.json").exists():
            raise self.taken("comparison")
        if any(checkpoints.batches_of(path) for path in self._checkpoints()):
            raise self.taken(self.what)

    def begin(self, recipe: Recipe) -> None:
        """Save every setting of the run, and remove what an earlier run that was begun here has left."""
        stale = [self.path / name for name in ("metrics.jsonl", "curves.png", "summary.json")]
        for path in (*stale, *self._checkpoints()):
            path.unlink(missing_ok=True)
        self.write("config.json", json.dumps(recipes.as_dict(recipe), indent=2) + "\n")

    def _checkpoints(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        return [*checkpoints.saved(self.path), *checkpoints.saved(self.path, "best")]

    @property
    def recipe(self) -> Recipe:
        """The recipe that the run trains."""
        path = self.path / "config.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(values, dict):
                raise ValueError("it holds no settings by name")
            return recipes.from_dict(values)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is not what a run writes ({error}): start the run again.") from error

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Replace the metrics, and draw them."""
        self.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        if rows:
            self.write("curves.png", draw(rows, f"{self.recipe.name}, {self.recipe.rule}"))

    def write_summary(self, rows: list[dict[str, Any]], **figures: Any) -> dict[str, Any]:
        """Write the summary of the run, once it is over."""
        recipe, best = self.recipe, best_row(rows)
        summary = {
            "recipe": recipe.name,
            "rule": recipe.rule,
            "seed": recipe.seed,
            "test_accuracy": rows[-1]["test_accuracy"],
            "best_test_accuracy": best["test_accuracy"],
            "best_epoch": best["epoch"],
            "best_chosen_on": chosen_on(rows),
            "epochs": len(rows),
            "samples_per_second": speed(rows),
            **{name: max(row[name] for row in rows) for name in ("process_peak_bytes", "process_growth_bytes")},
            **figures,
            "commit": commit(),
            "versions": versions(),
        }
        self.write("summary.json", json.dumps(summary, indent=2) + "\n")
        return summary


class SilentRunFolder(RunFolder):
    """The folder of a run that another process writes."""

    def begin(self, recipe: Recipe) -> None:
        pass

    def write(self, name: str, content: str | bytes) -> None:
        pass

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        pass


def chosen_on(rows: list[dict[str, Any]]) -> str:
    """Which samples the best epoch is chosen on: the validation set or, if there is none, the test set."""
    return "validation" if "validation_accuracy" in rows[-1] else "test"


def best_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The epoch with the highest accuracy; of several, the first."""
    return max(rows, key=lambda row: row[f"{chosen_on(rows)}_accuracy"])


def load(path: str | Path, best: bool = False) -> nn.Sequential:
    """The trained network of a run, without auxiliary networks, in evaluation mode on the CPU: with the weights of its
    last checkpoint, or of its best epoch.

    Example:
        >>> model = stdl_engine.load("runs/digits-stdl")
    """
    return trained_network(RunFolder.open(Path(path)), best).model.eval()


class Found(NamedTuple):
    """A trained network."""

    model: nn.Sequential
    recipe: Recipe
    path: Path
    """The file that the weights are from."""
    chunk: int
    """How many time steps ran together in training."""


def trained_network(folder: RunFolder, best: bool) -> Found:
    """The network of a run."""
    if best:
        path, state = checkpoints.load_best(folder.path)
    else:
        path, state, _ = checkpoints.load_last(folder.path)
    recipe = folder.recipe
    check_same_settings(recipe, state["config"], path)
    model = build_network(recipe)
    load_weights(model, state["rule"]["model"], f"the weights in {path} do not fit the network of its own config.json.")
    return Found(model, recipe, path, state["rule"].get("cut", {}).get("chunk", 1))  # older checkpoints have no cut


def check_same_settings(recipe: Recipe, saved: dict[str, Any], path: Path) -> None:
    """Reject a checkpoint that was made with other settings than the recipe's."""
    try:
        other = recipes.from_dict(saved)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} holds settings that cannot be ({error}): use a checkpoint of this run.") from error
    differing = [
        f"{field.name} {getattr(other, field.name)} there and {getattr(recipe, field.name)} here"
        for field in fields(Recipe)
        if field.name not in MAY_CHANGE and getattr(other, field.name) != getattr(recipe, field.name)
    ]
    if differing:
        raise ValueError(
            f"{path} was made with other settings than config.json has ({'; '.join(differing)}): put the settings "
            "back, or start a new run."
        )


def load_weights(module: nn.Module, values: dict[str, Tensor], otherwise: str) -> None:
    """Load weights into a module; if the shapes differ, they are refused with the sentence `otherwise`."""
    try:
        module.load_state_dict(values)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise ValueError(otherwise) from error


def versions() -> dict[str, str]:
    """Python and the packages that numbers depend on."""
    numbers = {"python": platform.python_version(), "stdl-engine": __version__}
    for package in PACKAGES:
        try:
            numbers[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # triton is not available on every system
    return numbers


def commit() -> str:
    """The commit of the source, with a plus sign if files have been changed since; empty outside its repository."""
    git = functools.partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    try:
        if git(["git", "ls-files", "--error-unmatch", Path(__file__).name]).returncode:
            return ""  # an installed copy, perhaps inside a repository of something else
        head = git(["git", "rev-parse", "--short=12", "HEAD"])
        changed = git(["git", "status", "--porcelain", "--untracked-files=no"])
    except FileNotFoundError:
        return ""
    return "" if head.returncode else head.stdout.strip() + ("+" if changed.stdout.strip() else "")
