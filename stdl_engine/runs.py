"""The folder of a run: its settings, what was measured each epoch, curves, checkpoints, and a summary at the end.

config.json      the recipe, every field of it
plan.txt         subnetworks and auxiliary networks
metrics.jsonl    one line an epoch
curves.png       loss and accuracy
tensorboard/     the same, for TensorBoard
checkpoint-*.pt  the last two
summary.json     once the run is over
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from torch import nn

from . import checkpoints, recipes
from .curves import draw
from .files import write_atomically
from .recipes import Recipe

PACKAGES = ("torch", "torchvision", "triton", "numba", "numpy", "spikingjelly")


class RunFolder:
    """A run's files. Nothing in it is ever half-written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A folder for a new run, still empty; one that has a run already, or cannot be written, is refused."""
        if (path / "config.json").exists():
            raise ValueError(f"{path} holds a run already: go on with it by --resume {path}, or choose another --out.")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot write to {path} ({error.strerror}): choose another folder by --out.") from error
        if not os.access(path, os.W_OK):
            raise ValueError(f"cannot write to {path} (no permission): choose another folder by --out.")
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that was begun."""
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} is no folder of a run: it has no config.json.")
        return cls(path)

    def write_config(self, recipe: Recipe) -> None:
        """Keep every setting of the run."""
        self.write("config.json", json.dumps(recipes.as_dict(recipe), indent=2) + "\n")

    @property
    def recipe(self) -> Recipe:
        """What the run trains."""
        path = self.path / "config.json"
        try:
            return recipes.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is not what a run writes ({error}): start the run again.") from error

    def metrics(self) -> list[dict[str, Any]]:
        """What was measured, epoch by epoch."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Replace what was measured, and draw it."""
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        if rows:
            write_atomically(self.path / "curves.png", draw(rows, f"{self.recipe.name}, {self.recipe.rule}"))

    def write(self, name: str, content: str) -> None:
        """One file of the folder."""
        write_atomically(self.path / name, content)

    def write_summary(self, rows: list[dict[str, Any]], parameters: int, peak_bytes: int) -> dict[str, Any]:
        """The run in one file, once it is over."""
        seconds = sum(row["train_seconds"] for row in rows)
        summary = {
            "recipe": self.recipe.name,
            "rule": self.recipe.rule,
            "test_accuracy": rows[-1]["test_accuracy"],
            "best_test_accuracy": max(row["test_accuracy"] for row in rows),
            "epochs": len(rows),
            "peak_bytes": peak_bytes,
            "samples_per_second": sum(row["samples"] for row in rows) / seconds if seconds else 0.0,
            "parameters": parameters,
            "commit": commit(),
            "versions": versions(),
        }
        self.write("summary.json", json.dumps(summary, indent=2) + "\n")
        return summary


def load(path: str | Path) -> nn.Sequential:
    """The trained network of a run, without auxiliary networks, in evaluation mode on the CPU.

    Example:
        >>> model = stdl_engine.load("runs/digits-stdl")
    """
    folder = RunFolder.open(Path(path))
    _, state, _ = checkpoints.load_last(folder.path)
    model = folder.recipe.build()
    model.load_state_dict(state["rule"]["model"])
    return model.eval()


def versions() -> dict[str, str]:
    """Python and the packages that numbers depend on."""
    found = {"python": platform.python_version(), "stdl-engine": importlib.metadata.version("stdl-engine")}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # triton is not there on every system
    return found


def commit() -> str:
    """The commit of the source, with a plus sign if files have been changed since; nothing outside a repository."""
    git = functools.partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    try:
        head = git(["git", "rev-parse", "--short=12", "HEAD"])
        changed = git(["git", "status", "--porcelain", "--untracked-files=no"])
    except FileNotFoundError:
        return ""
    return "" if head.returncode else head.stdout.strip() + ("+" if changed.stdout.strip() else "")
