"""What a training step will need, before any run: `python -m stdl_engine.plan RECIPE-OR-MODEL [--budget B] ...`.

Every field of a recipe is an option. The real training step of the real rule runs on fake tensors (see
planning/planner.py), in seconds, without data or a GPU.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from .extras import extra

with extra("train", __name__):
    from rich.console import Group, RenderableType
    from rich.table import Table

    from . import rank_plan
    from .atomic_files import write_atomically
    from .building import for_data, load_data, predict_others, predict_peak
    from .command_line import given, parse, recipe_in, run_command, with_config
    from .parallel.simulate import Machine
    from .planning.budgets import format_bytes, parse_budget, parse_bytes
    from .planning.plan import fold_names
    from .planning.planner import Prediction
    from .printer import WIDTH, Printer
    from .recipes import RECIPES, SMALLEST_BATCH, Recipe, by_rule, find
    from .settings import Between
    from .stopping import StopSignals
    from .tradeoff import Point, as_csv, choice_table, draw, read_points, trade_off

HEADINGS = ("subnetwork", "auxiliary network")
COMPARED = ("bptt", "sltt", "decolle", "ell", "stdl")


@dataclass(frozen=True, kw_only=True)
class Options(Recipe):
    """A recipe's settings, and what to find out about them."""

    compare: bool = False
    """All rules side by side, in both forms of memory."""
    curve: Path | None = None
    """Write each rule's trade-off of bytes against work to this file as CSV, and beside it as a picture (.png)."""
    beside: Path | None = None
    """With --curve: also show the points of this file that are of the same network, batch and time steps. The file is
    one that --curve has written, or `python -m bench.memopt_points`."""
    fit: str | None = None
    """The largest batch that fits into this much memory, "24GiB", for each rule, or for the one that --rule names."""
    stages: Annotated[int | None, Between(1, 10_000)] = None
    """What each rank will need, compute and send if subnetworks are spread over this many stages (docs/parallel.md)."""
    ranks: Annotated[int | None, Between(1, 1_000_000)] = None
    """With --stages: the total number of ranks, where those of a stage share each batch; by default one per stage."""
    scaling: Annotated[int | None, Between(1, 1_000_000)] = None
    """Simulate up to this many ranks, and say how far training scales and what limits it."""
    rank_speed: Annotated[float, Between(1, 1e30)] = Machine.multiply_adds
    """With --scaling: multiply-adds per second of a rank."""
    bandwidth: Annotated[float, Between(1, 1e30)] = Machine.bandwidth
    """With --scaling: bytes per second of a link between ranks."""
    config: Path | None = None
    """A file of settings, TOML or JSON, that override the recipe's."""
    json: bool = False
    """Print JSON."""

    def __post_init__(self) -> None:
        """Checks nothing: the recipe checks itself when it is made from these options."""


def main(arguments: list[str] | None = None) -> int:
    return run_command("plan", command, arguments)


def command(arguments: list[str], stop: StopSignals) -> None:
    options, named = parse_options(arguments)
    printer, progress = Printer(), Printer(stderr=True)
    recipe = recipe_in(options)
    if named & {"dataset", "data", "size", "sensor"} and not {"in_shape", "num_classes"} <= named:
        recipe = for_data(recipe, load_data(recipe))  # a network for other data than the recipe's may have other shapes
    if options.scaling is not None:
        machine = Machine(options.rank_speed, options.bandwidth)
        with progress.console.status("planning"):
            layouts = rank_plan.scaling(recipe, options.scaling, machine)
        answer: Any = [asdict(one) for one in layouts]
        table: RenderableType = rank_plan.scaling_table(recipe, layouts, machine)
    elif options.stages is not None:
        with progress.console.status("planning"):
            on_ranks = rank_plan.plan_ranks(recipe, options.stages, options.ranks)
        answer, table = rank_plan.as_json(on_ranks), rank_plan.table(on_ranks)
    elif options.compare:
        predictions = compare(recipe, progress)
        answer = [as_json(p) for p in predictions]
        table = comparison_table(predictions)
    elif options.fit is not None:
        rules = (recipe.rule,) if "rule" in named else COMPARED
        answer = fit(recipe, rules, options.fit, progress)
        table = fit_table(answer, options.fit)
    elif options.curve is not None:
        rules = (recipe.rule,) if "rule" in named else COMPARED
        check_curve(options.curve)
        beside = read_beside(recipe, options.beside, progress)
        predictions = write_curve(recipe, rules, options.curve, progress, beside)
        answer = [*map(as_json, predictions), *map(asdict, beside)]
        table = choice_table(predictions, beside=beside)
    else:
        with progress.console.status("planning"):
            prediction = predict_peak(recipe)
        answer, table = as_json(prediction), prediction_table(prediction, in_binary(recipe.budget))
        if recipe.rule == "auto":
            with progress.console.status("planning what else there is"):
                others = list(predict_others(recipe))
            answer["others"] = [as_json(p) for p in others]
            table = Group(choice_table(others, prediction, in_binary(recipe.budget)), table)
    if options.json:
        printer.say(json.dumps(answer, indent=2))
    else:
        printer.show(table)


def parse_options(arguments: list[str]) -> tuple[Options, set[str]]:
    """The recipe that is named first, changed by the options, and the names of the changed settings."""
    named = bool(arguments) and not arguments[0].startswith("-")
    if not named and not {"help", "config"} & given(arguments) and "-h" not in arguments:
        raise ValueError(f"name a recipe or a model to plan for: {', '.join(RECIPES)}.")
    recipe = find(arguments[0]) if named else next(iter(RECIPES.values()))
    options = arguments[1:] if named else arguments
    settings, configured = with_config(recipe, options)
    typed = given(options)
    _check_rank_options(typed)
    if {"compare", "fit", "curve"} & typed:
        _check_modes(typed)
        settings |= {} if "rule" in typed else {"rule": "stdl"}  # a budget is for STDL, whatever the recipe's own rule
        settings |= {} if "chunk" in configured else {"chunk": 1}  # these ask for the least memory
    described = f"The memory that a training step will need. Recipes: {', '.join(RECIPES)}; or the name of a model."
    prog = f"python -m stdl_engine.plan {recipe.name}"
    parsed = parse(Options, Options(**settings), options, prog, described)
    if parsed.rule == "auto" and {"fit", "curve"} & typed:
        raise ValueError("--fit and --curve ask what one rule can do, and auto is a choice among rules: name another.")
    return parsed, typed | configured


def _check_rank_options(typed: set[str]) -> None:
    """Reject options about ranks, and those of another option, that would have no effect."""
    modes = {"stages", "scaling", "compare", "fit", "curve"}
    if {"stages", "scaling"} & typed and len(modes & typed) > 1:
        one, other, *_ = sorted(modes & typed)
        raise ValueError(f"--{one} and --{other} ask two questions: leave one of them out.")
    needs = ("ranks", "stages"), ("rank_speed", "scaling"), ("bandwidth", "scaling"), ("beside", "curve")
    for name, needed in needs:
        if name in typed and needed not in typed:
            raise ValueError(f"--{name.replace('_', '-')} is for --{needed}: pass both, or neither.")


def _check_modes(typed: set[str]) -> None:
    """Reject options that would have no effect."""
    for mode, other in (
        ("compare", "fit"), ("compare", "curve"), ("curve", "fit"), ("compare", "rule"), ("compare", "memory"),
        ("curve", "memory"), ("curve", "budget"), ("curve", "recompute"), ("fit", "batch_size"),
    ):  # fmt: skip
        if {mode, other} <= typed:
            decided = {
                "rule": "all rules", "memory": "the form of memory", "batch_size": "the batch size",
                "budget": "the budgets", "recompute": "what is recomputed",
            }  # fmt: skip
            why = f"decides {decided[other]} itself" if other in decided else "asks another question"
            raise ValueError(f"--{mode} {why}: leave --{other.replace('_', '-')} out.")


def compare(recipe: Recipe, progress: Printer) -> list[Prediction]:
    """Every rule in both forms of memory."""
    predictions = []
    for rule in COMPARED:
        for memory in ("paper", "lean"):
            with progress.console.status(f"planning {rule}, {memory} memory"):
                predictions.append(predict_peak(by_rule(recipe, rule, memory)))
    return predictions


def check_curve(path: Path) -> None:
    """Reject a place that cannot be written to, before minutes of planning."""
    if not path.name:
        raise ValueError(f"--curve is {str(path)!r}, which names no file: write one, such as curve.csv.")
    if not os.access(path.parent, os.W_OK) or not path.parent.is_dir():
        raise ValueError(f"--curve {path} cannot be written: {path.parent} is no folder that can be written to.")


def read_beside(recipe: Recipe, path: Path | None, progress: Printer) -> list[Point]:
    """The points to show beside those of the recipe."""
    if path is None:
        return []
    found, strangers = read_points(path, recipe)
    if strangers:
        progress.say(f"left out: {strangers} points in {path} of another network, batch or number of time steps")
    return found


def write_curve(
    recipe: Recipe, rules: tuple[str, ...], path: Path, progress: Printer, beside: Sequence[Point] = ()
) -> list[Prediction]:
    """Write the trade-off of each rule, and the points of others, as a file of values and a picture."""
    predictions = []
    for rule in rules:
        with progress.console.status(f"planning {rule}") as status:
            for found in trade_off(recipe, rule):
                predictions.append(found)
                status.update(f"planning {rule}: {format_bytes(found.peak_bytes)}, {found.cost:.2f}× the work")
    title = f"{recipe.name}: batch {recipe.batch_size}, T={recipe.steps}"
    points = [Point.of(p) for p in predictions]
    write_atomically(path.with_suffix(".csv"), as_csv([*points, *beside], recipe))
    write_atomically(path.with_suffix(".png"), draw(points, title, beside))
    progress.say(f"written: {path.with_suffix('.csv')}, {path.with_suffix('.png')}")
    return predictions


def fit(recipe: Recipe, rules: tuple[str, ...], size: str, progress: Printer) -> list[dict[str, Any]]:
    """For each rule the largest batch whose step peaks within the given memory; prints progress."""
    limit, binary = parse_bytes(size), in_binary(size)
    answers: list[dict[str, Any]] = []
    for number, rule in enumerate(rules, 1):
        what = f"fitting {rule} ({number} of {len(rules)})"
        with progress.console.status(what) as status:

            def trying(batch_size: int, peak_bytes: int, what: str = what, status: Any = status) -> None:
                status.update(f"{what}: batch {batch_size} needs {format_bytes(peak_bytes, binary)}")

            answer = largest_batch(by_rule(recipe, rule), limit, trying)
        if progress.console.is_terminal:
            fits = f"batch {answer['batch_size']}" if answer["batch_size"] else "no batch"
            progress.say(f"{what}: {fits}, {format_bytes(answer['peak_bytes'], binary)}")
        answers.append({"rule": rule, "memory": recipe.memory, **answer})
    if all(answer["batch_size"] == 0 for answer in answers):
        least = min(answer["peak_bytes"] for answer in answers)
        raise ValueError(
            f"nothing fits in {format_bytes(limit, binary)}: the smallest batch, {SMALLEST_BATCH}, needs {least} bytes "
            f"({format_bytes(least, binary)})."
        )
    return answers


def largest_batch(recipe: Recipe, limit: int, trying: Any) -> dict[str, int]:
    """Activations grow in proportion to the batch and the rest does not: two plans give a line, and others check it."""

    def peak(batch_size: int) -> int:
        peak_bytes = predict_peak(replace(recipe, batch_size=batch_size)).peak_bytes
        trying(batch_size, peak_bytes)
        return peak_bytes

    small, large = SMALLEST_BATCH, SMALLEST_BATCH + 32
    low = peak(small)
    if low > limit:
        return {"batch_size": 0, "peak_bytes": low}
    slope = (peak(large) - low) / (large - small)
    batch = max(small, int(small + (limit - low) / slope))
    needed = peak(batch)
    while needed > limit and batch > small:
        batch = max(small, batch - max(1, int((needed - limit) / slope)))
        needed = peak(batch)
    while (more := peak(batch + 1)) <= limit:
        batch, needed = batch + 1, more
    return {"batch_size": batch, "peak_bytes": needed}


def in_binary(size: str | None) -> bool:
    """Whether an amount of memory was written in powers of 1024, so that answers are too."""
    return size is not None and parse_budget(size).binary


def as_json(prediction: Prediction) -> dict[str, Any]:
    """The documented JSON form."""
    names = (
        "rule",
        "memory",
        "batch_size",
        "steps",
        "peak_bytes",
        "parts",
        "subnetworks",
        "recompute",
        "cost",
        "chunk",
    )
    return {name: getattr(prediction, name) for name in names}


def prediction_table(p: Prediction, binary: bool = False) -> Table:
    """One plan for people: the peak, what it is made of, and each subnetwork."""
    caption = "\n".join(p.details(binary))
    table = Table(title=p.title(binary), caption=caption, title_justify="left", caption_justify="left")
    for column in ("", *HEADINGS, "peak"):
        table.add_column(column, justify="right" if column == "peak" else "left", no_wrap=column == "peak")
    names = [("-".join(part["units"]), "-".join(part["auxiliary"]) or "-") for part in p.subnetworks]
    peaks = [format_bytes(part["peak_bytes"], binary) for part in p.subnetworks]
    frame = len(str(len(names))) + max(map(len, peaks)) + 13  # the other two columns, and the lines between all four
    _, *folded = fold_names([HEADINGS, *names], WIDTH - frame)
    for number, (cells, peak) in enumerate(zip(folded, peaks, strict=True), 1):
        table.add_row(str(number), *("\n".join(lines) for lines in cells), peak)
    return table


def comparison_table(predictions: list[Prediction]) -> Table:
    """Rules side by side, with how many times less memory than plain and than lean BPTT."""
    plain, lean = (next(p for p in predictions if p.rule == "BPTT" and p.memory == m) for m in ("paper", "lean"))
    table = Table(title=f"batch {plain.batch_size}, T={plain.steps}", title_justify="left")
    for column in ("rule", "memory", "peak", "less than BPTT", "less than lean BPTT", "subnetworks"):
        table.add_column(column, justify="left" if column in ("rule", "memory") else "right")
    for p in predictions:
        ratios = (f"{other.peak_bytes / p.peak_bytes:.2f}×" for other in (plain, lean))
        table.add_row(p.rule, p.memory, format_bytes(p.peak_bytes), *ratios, str(len(p.subnetworks)))
    return table


def fit_table(answers: list[dict[str, Any]], size: str) -> Table:
    """The largest batch for each rule."""
    table = Table(title=f"largest batch within {size}", title_justify="left")
    for column in ("rule", "memory", "batch size", "peak"):
        table.add_column(column, justify="left" if column in ("rule", "memory") else "right")
    for a in answers:
        fits = str(a["batch_size"]) if a["batch_size"] else "none"
        table.add_row(a["rule"], a["memory"], fits, format_bytes(a["peak_bytes"], in_binary(size)))
    return table


if __name__ == "__main__":
    sys.exit(main())
