"""Train a recipe: `python -m stdl_engine.train [RECIPE] [--rule R] [--epochs N] [--compare] [--resume DIR] ...`.

Every field of a recipe is an option. Without a recipe's name a small network learns scikit-learn's digits in under a
minute on a laptop's CPU.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .extras import MissingExtra, extra

with extra("train", __name__):
    import tyro
    from rich.console import Console
    from rich.table import Table

    from . import checkpoints
    from .comparison import compare
    from .data import DATASETS
    from .recipes import RECIPES, Recipe
    from .rules import RULES
    from .runs import RunFolder
    from .trainer import Diverged, Interrupted, Trainer

DEFAULT = "digits"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to do with a recipe."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    out: Path | None = None
    """The folder of the run; by default a new one in runs/."""
    resume: Path | None = None
    """Go on with the run in this folder, with its own settings, from its last checkpoint."""
    compare: tuple[str, ...] | None = None
    """Train by several rules one after the other (all, or those named) and compare them."""


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        if "--list" in arguments:
            console.print(listing())
            return 0
        options = parse(arguments)
        if options.resume is not None:
            if len(arguments) > 2:
                raise ValueError("--resume goes on with a run's own settings: leave the other options out.")
            resume(options.resume, console)
        elif options.compare is not None:
            rules = options.compare or ("bptt", "sltt", "decolle", "ell", "stdl")
            compare(options.recipe, rules, options.out or new_folder(options.recipe, "compare"), train, console)
        else:
            train(options.recipe, options.out or new_folder(options.recipe, options.recipe.rule), console)
    except (ValueError, TypeError, OSError, MissingExtra, Diverged) as error:
        print(f"stdl_engine.train: {error}", file=sys.stderr)
        return 2
    except Interrupted as error:
        print(f"stdl_engine.train: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def parse(arguments: list[str]) -> Options:
    """The recipe named first, or the default one, with what the options change."""
    named = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if named else DEFAULT
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}: choose from {', '.join(RECIPES)}.")
    return tyro.cli(
        Options,
        default=Options(recipe=RECIPES[name]),
        args=arguments[1:] if named else arguments,
        prog=f"python -m stdl_engine.train {name}",
        description=f"Train the recipe {name}. The recipes: {', '.join(RECIPES)} (--list says what they are).",
    )


def train(recipe: Recipe, out: Path, console: Console) -> dict[str, Any]:
    """A run from the beginning."""
    check(recipe)
    folder = RunFolder.create(out)
    first = None
    if recipe.start_from is not None:
        _, first, _ = checkpoints.load_last(RunFolder.open(recipe.start_from).path)
    trainer = Trainer(recipe, recipe.load_data(), folder, console)
    if first is not None:
        trainer.start_from(first)
    folder.write_config(trainer.recipe)
    return finish(trainer)


def resume(path: Path, console: Console) -> dict[str, Any]:
    """The rest of a run."""
    folder = RunFolder.open(path)
    _, state, problems = checkpoints.load_last(folder.path)
    for problem in problems:
        console.print(f"{problem} Going on from the one before.", highlight=False, markup=False)
    trainer = Trainer(folder.recipe, folder.recipe.load_data(), folder, console)
    trainer.restore(state)
    console.print(f"going on after epoch {trainer.epoch}, batch {trainer.batch}", highlight=False)
    return finish(trainer)


def finish(trainer: Trainer) -> dict[str, Any]:
    """Train to the end and say what came out."""
    trainer.console.print(str(trainer.rule.plan), highlight=False, markup=False)
    summary = trainer.run()
    trainer.console.print(
        f"test accuracy {summary['test_accuracy']:.2%} (best {summary['best_test_accuracy']:.2%}), "
        f"{summary['samples_per_second']:.0f} samples/s; everything is in {trainer.folder.path}",
        highlight=False,
    )
    return summary


def check(recipe: Recipe) -> None:
    """Reject a recipe that cannot be trained, before data is read."""
    for name, value, least in (
        ("--epochs", recipe.epochs, 1),
        ("--batch-size", recipe.batch_size, 2),
        ("--steps", recipe.steps, 1),
        ("--workers", recipe.workers, 0),
        ("--seed", recipe.seed, 0),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}: it must be {least} or more.")
    if recipe.dataset not in DATASETS:
        raise ValueError(f"unknown dataset {recipe.dataset!r}: choose from {', '.join(DATASETS)}.")
    recipe.rule_options()
    if recipe.starts_from and recipe.start_from is None:
        raise ValueError(
            f"the recipe {recipe.name} starts from the weights of {recipe.starts_from}: train that first, and pass its "
            "folder by --start-from."
        )


def new_folder(recipe: Recipe, what: str) -> Path:
    """A folder in runs/ that is not there yet."""
    return Path("runs") / f"{recipe.name}-{what}-{time.strftime('%Y%m%d-%H%M%S')}"


def listing() -> Table:
    """The recipes, for reading."""
    table = Table(title=f"recipes (rules: {', '.join(RULES)})", title_justify="left")
    columns = ("recipe", "dataset", "model", "width", "rule", "T", "epochs", "batch", "optimizer", "lr")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for r in RECIPES.values():
        figures = (f"{r.width:g}", r.rule, str(r.steps), str(r.epochs), str(r.batch_size), r.optimizer, f"{r.lr:g}")
        table.add_row(r.name, r.dataset, r.model, *figures)
    return table


if __name__ == "__main__":
    sys.exit(main())
