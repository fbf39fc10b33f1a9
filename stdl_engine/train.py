"""Train a recipe: `python -m stdl_engine.train [RECIPE] [--rule R] [--epochs N] [--compare] [--resume DIR] ...`.

Every field of a recipe is an option. Without a recipe's name a small network learns scikit-learn's digits in under a
minute on a laptop's CPU.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import time
import traceback
from collections.abc import Iterator, Set
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .extras import extra

with extra("train", __name__):
    from rich.table import Table

    from . import checkpoints
    from .building import load_data, predict_others
    from .command_line import given, parse, recipe_in, run_command, with_config
    from .comparison import COMPARED, ComparisonFolder, compare
    from .own_functions import find_own
    from .planning.budgets import parse_budget
    from .printer import WIDTH, Printer, SilentPrinter
    from .process_memory import set_malloc
    from .rank_trainer import RankTrainer
    from .recipes import RECIPES, Recipe
    from .rules import CHOICES
    from .runs import MAY_CHANGE, RunFolder, SilentRunFolder, check_same_settings
    from .settings import Between
    from .speaking import first_process_speaking, number_of_processes, speaking_for_all
    from .stopping import StopSignals
    from .tradeoff import choice_table
    from .trainer import Trainer

if TYPE_CHECKING:
    from .data import Dataset
    from .parallel import Ranks

DEFAULT = "digits"
OF_THE_DATA = ("in_shape", "num_classes", "events")
"""Settings that the data decides; one that is given must agree with the data."""


@dataclass(frozen=True, kw_only=True)
class Options(Recipe):
    """A recipe's settings, and what to do with them."""

    out: Path | None = None
    """The folder of the run; by default a new one in runs/."""
    resume: Path | None = None
    """Continue the run or the comparison in this folder, with its own settings, from its last checkpoint."""
    compare: tuple[str, ...] | None = None
    """Train with several rules one after the other (all, or those named) and compare them."""
    seeds: int = 1
    """With --compare: train with each rule this many times, with different seeds, and report mean and deviation."""
    stages: Annotated[int, Between(1, 10_000)] = 1
    """Under torchrun: how many stages the subnetworks are spread over; ranks with the same stage share each batch."""
    timeout: Annotated[float, Between(1, 1e6)] = 300.0
    """Under torchrun: seconds after which a rank that does not answer is considered lost, and all others end."""
    config: Path | None = None
    """A file of settings, TOML or JSON (a run's config.json), that override the recipe's."""
    list: bool = False
    """Print the recipes and exit."""

    def __post_init__(self) -> None:
        """Checks nothing: the recipe checks itself when it is made from these options."""


def main(arguments: list[str] | None = None) -> int:
    return run_command("train", command, arguments)


def command(arguments: list[str], stop: StopSignals) -> None:
    printer = Printer()
    if "list" in given(arguments):
        return printer.show(listing())
    with first_process_speaking():
        options, typed, stated = parse_options(arguments)
        processes = number_of_processes(options.stages)
        if processes > 1 and options.compare is not None:
            raise ValueError("--compare trains in one process: leave torchrun out, or --compare.")
    if processes > 1:
        with speaking_for_all(options.stages, options.timeout) as ranks:
            return command_of_a_run(options, typed, stated, printer if ranks.speaks else SilentPrinter(), stop, ranks)
    if options.compare is None:
        return command_of_a_run(options, typed, stated, printer, stop)
    if options.resume is not None:
        return resume(options.resume, resumed_with(options, typed), printer, stop)
    if "rule" in typed:
        raise ValueError("--compare names the rules itself: leave --rule out.")
    recipe = recipe_in(options)
    train_one = functools.partial(train, printer=printer, stop=stop, stated=stated)
    resume_one = functools.partial(resume_run, changes={}, printer=printer, stop=stop)
    out = options.out or new_folder(recipe, "compare")
    with ComparisonFolder.create(out, printer.say) as folder:
        folder.begin(recipe, options.compare or COMPARED, options.seeds)
        compare(folder, train_one, resume_one, printer)
    return None


def command_of_a_run(
    options: Options, typed: set[str], stated: set[str], printer: Printer, stop: StopSignals, ranks: Ranks | None = None
) -> None:
    """Begin a run, or continue one."""
    if options.resume is not None:
        return resume(options.resume, resumed_with(options, typed), printer, stop, ranks)
    if "seeds" in typed:
        raise ValueError("--seeds is for --compare: pass both, or one --seed.")
    recipe = recipe_in(options)
    out = options.out or new_folder(recipe, recipe.rule)
    train(recipe, out if ranks is None else ranks.from_speaker(out), printer, stop, stated, ranks)
    return None


def parse_options(arguments: list[str]) -> tuple[Options, set[str], set[str]]:
    """The recipe named first, or the default one, changed by a config file and the options; the names of the options;
    and the settings of the data that the options and the file state."""
    named = bool(arguments) and not arguments[0].startswith("-")
    name = arguments[0] if named else DEFAULT
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}: choose from {', '.join(RECIPES)}.")
    options = arguments[1:] if named else arguments
    settings, configured = with_config(RECIPES[name], options)
    typed = given(options)
    if "compare" in typed:
        settings |= {"rule": "stdl"}  # a budget is for STDL, whatever the recipe's own rule
    prog, described = (
        f"python -m stdl_engine.train {name}",
        f"Train the recipe {name}; --list shows the others.",
    )
    parsed = parse(Options, Options(**settings), options, prog, described)
    return parsed, typed | ({"a recipe"} if named else set()), (typed | configured) & set(OF_THE_DATA)


def resumed_with(options: Options, typed: set[str]) -> dict[str, Any]:
    """The changes to a run that is resumed; those that are not allowed are refused."""
    if others := sorted(typed - {"resume", "stages", "timeout", *MAY_CHANGE}):
        names = ", ".join(name if " " in name else f"--{name.replace('_', '-')}" for name in others)
        changeable = ", ".join(f"--{name.replace('_', '-')}" for name in MAY_CHANGE)
        raise ValueError(
            f"--resume continues with a run's own settings: leave {names} out (only {changeable} may be changed)."
        )
    return {name: getattr(options, name) for name in MAY_CHANGE if name in typed}


def train(
    recipe: Recipe,
    out: Path,
    printer: Printer,
    stop: StopSignals | None = None,
    stated: Set[str] = frozenset(),
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """A run from the beginning. `stated` are settings of the data that it must agree with."""
    if recipe.first_stage and recipe.start_from is None:
        raise ValueError(
            f"the recipe {recipe.name} starts from the weights of {recipe.first_stage}: train that first, and pass its "
            "folder as --start-from."
        )
    writes = ranks is None or ranks.speaks
    with RunFolder.create(out, printer.say) if writes else nullcontext(SilentRunFolder(out)) as folder:
        trainer = prepare(recipe, stated, folder, printer, stop, ranks)
        folder.begin(trainer.recipe)
        with logged(folder, printer):
            trainer.save()
            return finish(trainer)


def resume(
    path: Path,
    changes: dict[str, Any],
    printer: Printer,
    stop: StopSignals | None = None,
    ranks: Ranks | None = None,
) -> None:
    """The rest of a run or of a comparison."""
    if not (path / ComparisonFolder.settings_file).is_file():
        resume_run(path, changes, printer, stop, ranks)
        return
    if ranks is not None:
        raise ValueError(f"{path} holds a comparison, which continues in one process: leave torchrun out.")
    if changes:
        raise ValueError(f"{path} holds a comparison, which continues with its own settings: leave the options out.")
    train_one = functools.partial(train, printer=printer, stop=stop)
    resume_one = functools.partial(resume_run, changes={}, printer=printer, stop=stop)
    with ComparisonFolder.reopen(path, printer.say) as folder:
        compare(folder, train_one, resume_one, printer)


def resume_run(
    path: Path,
    changes: dict[str, Any],
    printer: Printer,
    stop: StopSignals | None = None,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """The rest of a run."""
    writes = ranks is None or ranks.speaks
    opened = RunFolder.reopen(path, printer.say) if writes else nullcontext(SilentRunFolder.open(path))
    with opened as folder, logged(folder, printer):
        recipe = replace(folder.recipe, **changes)
        last = last_checkpoint(folder, ranks)
        if last is None:
            trainer = prepare(recipe, set(OF_THE_DATA), folder, printer, stop, ranks)
            printer.say("there is no checkpoint yet: starting from the beginning")
            trainer.save()
        else:
            checkpoint, state, problems = last
            check_same_settings(recipe, state["config"], checkpoint)
            trainer = prepare(recipe, set(OF_THE_DATA), folder, printer, stop, ranks, state["rule"])
            for problem in problems:
                printer.say(f"{problem} Continuing from the one before.")
            trainer.restore(state, checkpoint)
            printer.say(f"continuing after epoch {trainer.epoch}, batch {trainer.batch}")
        return finish(trainer)


def last_checkpoint(folder: RunFolder, ranks: Ranks | None) -> tuple[Path, dict[str, Any], list[str]] | None:
    """The last valid checkpoint, if there is any, its state, and what is wrong with those after it; on several ranks
    the one that rank 0 has found."""
    speaks = ranks is None or ranks.speaks
    last = checkpoints.load_last(folder.path) if speaks and checkpoints.saved(folder.path) else None
    if ranks is None:
        return last
    path = ranks.from_speaker(None if last is None else last[0])
    return last if speaks or path is None else (path, checkpoints.load(path), [])


def prepare(
    recipe: Recipe,
    stated: Set[str],
    folder: RunFolder,
    printer: Printer,
    stop: StopSignals | None,
    ranks: Ranks | None = None,
    saved: dict[str, Any] | None = None,
) -> Trainer:
    """A trainer with its data and its initial weights; with the plan of the `saved` state of its rule."""
    choose_malloc(recipe)
    if ":" in recipe.model:
        find_own(recipe.model)  # before data is read and the seed is set, because importing it may draw random numbers
    first = None
    if recipe.start_from is not None:
        _, first, _ = checkpoints.load_last(RunFolder.open(recipe.start_from).path)
    data = load_data(recipe)
    check_data(recipe, data, stated)
    if ranks is None:
        trainer = Trainer(recipe, data, folder, printer, stop, saved)
    else:
        trainer = RankTrainer(recipe, data, folder, printer, stop or StopSignals(), ranks, saved)
    if first is not None:
        trainer.start_from(first)
    return trainer


def choose_malloc(recipe: Recipe) -> None:
    """Allocate memory as the recipe says."""
    if not set_malloc(recipe.malloc) and recipe.malloc == "tight":
        raise ValueError(
            "--malloc tight needs the memory allocator of glibc, which this system does not have: leave it out."
        )


def check_data(recipe: Recipe, data: Dataset, stated: Set[str]) -> None:
    """Reject data of other shapes or classes than were stated."""
    for name in OF_THE_DATA:
        said, is_so = getattr(recipe, name), getattr(data, name)
        if name in stated and said != (tuple(is_so) if name == "in_shape" else is_so):
            raise ValueError(
                f"--{name.replace('_', '-')} says {said} and the data has {is_so}: leave it out, the data decides."
            )


@contextlib.contextmanager
def logged(folder: RunFolder, printer: Printer) -> Iterator[None]:
    """A context in which what is printed also goes to the log of a run, and an error with its traceback."""
    with printer.logging_to(folder.path / "log.txt"):
        try:
            yield
        except BaseException:
            printer.log(traceback.format_exc().rstrip())
            raise


def finish(trainer: Trainer) -> dict[str, Any]:
    """Train to the end and print the results."""
    printer = trainer.printer
    if trainer.recipe.rule == "auto":
        show_choice(trainer)
    printer.say(trainer.rule.plan.table(WIDTH))
    printer.say(f"predicted peak memory of a training step: {trainer.in_words(trainer.predicted.peak_bytes)}")
    summary = trainer.run()
    printer.say(trainer.memory_report())
    best = f"best {summary['best_test_accuracy']:.2%} in epoch {summary['best_epoch']}"
    printer.say(
        f"test accuracy {summary['test_accuracy']:.2%} ({best}, chosen on the {summary['best_chosen_on']} set), "
        f"{summary['samples_per_second']:.0f} samples/s; everything is in {trainer.folder.path}"
    )
    return summary


def show_choice(trainer: Trainer) -> None:
    """Print what the rule auto has chosen, beside the alternatives."""
    with trainer.printer.console.status("planning what else there is"):
        others = list(predict_others(trainer.recipe))
    budget = trainer.recipe.budget
    assert budget is not None  # the rule auto needs it to choose
    trainer.printer.show(choice_table(others, trainer.predicted, parse_budget(budget).binary))


def new_folder(recipe: Recipe, what: str) -> Path:
    """A folder in runs/ that does not exist yet."""
    path = Path("runs") / f"{recipe.name}-{what}-{time.strftime('%Y%m%d-%H%M%S')}"
    later = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in (path, *itertools.islice(later, 1000)) if not folder.exists())


def listing() -> Table:
    """The recipes, for reading."""
    title = f"recipes, called after the data (rules: {', '.join(CHOICES)})"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for column in ("recipe", "model", "rule", "T", "epochs", "batch", "optimizer", "lr"):
        table.add_column(column, no_wrap=True)
    for r in RECIPES.values():
        model = r.model if r.width == 1 else f"{r.model} ×{r.width:g}"
        figures = (str(r.steps), str(r.epochs), str(r.batch_size), r.optimizer, f"{r.lr:g}")
        table.add_row(r.name, model, r.rule, *figures)
    return table


if __name__ == "__main__":
    sys.exit(main())
