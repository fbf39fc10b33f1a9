"""What a training step will need, before the first run: `python -m stdl_engine.plan cifar10`.

Runs the real training step of the real rule on fake tensors (see planning/planner.py): no data, no GPU, seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from typing import Any

import torch

from .extras import extra

with extra("train", __name__):
    from rich.console import Console
    from rich.table import Table

    from .planning.budgets import format_bytes, parse_bytes
    from .planning.planner import PARTS, Prediction, predict
    from .recipes import MODELS, RECIPES, Recipe, find
    from .rules import RULES

COMPARED = (
    ("bptt", "paper"), ("bptt", "lean"), ("sltt", "paper"), ("sltt", "lean"), ("decolle", "paper"), ("decolle", "lean"),
    ("ell", "paper"), ("ell", "lean"), ("stdl", "paper"), ("stdl", "lean"),
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(stderr=options.json, soft_wrap=True)
    try:
        recipe = configured(options)
        if options.compare:
            predictions = compare(recipe, options, console)
            answer: Any = [as_json(p) for p in predictions]
            show = comparison_table(predictions)
        elif options.fit is not None:
            answer = fit(recipe, options, console)
            show = fit_table(answer, options.fit)
        else:
            with console.status("planning"):
                prediction = plan(recipe, recipe.rule, options.memory, options.autocast)
            answer, show = as_json(prediction), prediction_table(prediction)
    except (ValueError, TypeError) as error:
        print(f"stdl_engine.plan: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        console.print(show)
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m stdl_engine.plan", description=__doc__.splitlines()[0])
    names = f"recipes: {', '.join(RECIPES)}; models: {', '.join(MODELS)}"
    parser.add_argument("target", metavar="RECIPE-OR-MODEL", help=names)
    parser.add_argument("--rule", help=f"one of {', '.join(RULES)}; default: the recipe's")
    parser.add_argument("--memory", default="lean", choices=("lean", "paper"), help="how activations are kept")
    parser.add_argument("--batch-size", type=int, help="default: the recipe's")
    parser.add_argument("--steps", type=int, metavar="T", help="time steps; default: the recipe's")
    parser.add_argument(
        "--budget", help='STDL: a fraction (0.5), bytes ("2GiB") or "published" (the default if it exists)'
    )
    parser.add_argument("--groups", type=int, default=3, metavar="K", help="groups of the rule even (default 3)")
    parser.add_argument("--width", type=float, help="multiplies every channel count; default: the recipe's")
    parser.add_argument(
        "--bf16", dest="autocast", action="store_const", const=torch.bfloat16, help="under bfloat16 autocast"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--compare", action="store_true", help="all rules side by side")
    mode.add_argument("--fit", metavar="BYTES", help='the largest batch that fits, for each rule: "24GiB"')
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def configured(options: argparse.Namespace) -> Recipe:
    """The recipe with what the command line changes."""
    recipe = find(options.target)
    rule = options.rule or recipe.rule
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r}: choose from {', '.join(RULES)}.")
    for value, name, least in ((options.batch_size, "--batch-size", 2), (options.steps, "--steps", 1)):
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}: it must be {least} or more.")
    if options.width is not None and not 0 < options.width < math.inf:
        raise ValueError(f"--width is {options.width}: it must be positive and finite, for example 0.25.")
    if options.budget is not None and rule != "stdl" and not (options.compare or options.fit):
        raise ValueError(f"--budget is for the rule stdl, and the rule is {rule}: leave one of them out.")
    changes = {name: getattr(options, name) for name in ("batch_size", "steps", "width", "budget", "groups")}
    return replace(recipe, rule=rule, **{name: value for name, value in changes.items() if value is not None})


def plan(recipe: Recipe, rule: str, memory: str, autocast: torch.dtype | None = None) -> Prediction:
    """The peak of one rule on one recipe."""
    recipe = replace(recipe, rule=rule, budget=recipe.budget if rule == "stdl" else None)
    with torch.device("meta"):
        model = recipe.build()
    shape = (recipe.batch_size, *recipe.in_shape)
    extra = {"memory": memory, "sequence": recipe.events, "autocast": autocast}
    return predict(RULES[rule], model, recipe.make_optimizer(), shape, recipe.steps, **extra, **recipe.rule_options())


def compare(recipe: Recipe, options: argparse.Namespace, console: Console) -> list[Prediction]:
    """Every rule in both forms of memory."""
    predictions = []
    for rule, memory in COMPARED:
        with console.status(f"planning {rule}, {memory} memory"):
            predictions.append(plan(recipe, rule, memory, options.autocast))
    return predictions


def fit(recipe: Recipe, options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """For each rule the largest batch whose step peaks within the memory asked for."""
    limit = parse_bytes(options.fit)
    answers = []
    for rule in ("bptt", "sltt", "decolle", "ell", "stdl"):
        with console.status(f"fitting {rule}"):
            answers.append({"rule": rule, "memory": options.memory, **largest_batch(recipe, rule, limit, options)})
    if all(answer["batch_size"] == 0 for answer in answers):
        least = min(answer["peak_bytes"] for answer in answers)
        raise ValueError(
            f"nothing fits in {format_bytes(limit)}: the smallest batch, 2, needs {least} bytes "
            f"({format_bytes(least)})."
        )
    return answers


def largest_batch(recipe: Recipe, rule: str, limit: int, options: argparse.Namespace) -> dict[str, Any]:
    """Activations grow in proportion to the batch and the rest does not: two plans give the line, a third checks it."""

    def peak(batch_size: int) -> int:
        return plan(replace(recipe, batch_size=batch_size), rule, options.memory, options.autocast).peak_bytes

    small, large = 2, 34
    low = peak(small)
    if low > limit:
        return {"batch_size": 0, "peak_bytes": low}
    slope = (peak(large) - low) / (large - small)
    batch = max(small, int(small + (limit - low) / slope))
    found = peak(batch)
    while found > limit and batch > small:
        batch = max(small, batch - max(1, int((found - limit) / slope)))
        found = peak(batch)
    while (more := peak(batch + 1)) <= limit:
        batch, found = batch + 1, more
    return {"batch_size": batch, "peak_bytes": found}


def as_json(prediction: Prediction) -> dict[str, Any]:
    """The documented JSON form."""
    names = ("rule", "memory", "batch_size", "steps", "peak_bytes", "parts", "subnetworks")
    return {name: getattr(prediction, name) for name in names}


def prediction_table(p: Prediction) -> Table:
    """One plan for people: the peak, what it is made of, and each subnetwork."""
    title = f"{p.rule}, {p.memory} memory, batch {p.batch_size}, T={p.steps}: peak {format_bytes(p.peak_bytes)}"
    caption = ", ".join(f"{part} {format_bytes(p.parts[part])}" for part in PARTS)
    place = (
        f"reached in time step {(p.place.step or 0) + 1}, subnetwork {(p.place.subnetwork or 0) + 1}, {p.place.phase}"
    )
    table = Table(title=title, caption=f"{caption}\n{place}", title_justify="left", caption_justify="left")
    for column in ("", "subnetwork", "auxiliary network", "peak"):
        table.add_column(column, justify="right" if column == "peak" else "left", overflow="fold")
    for number, part in enumerate(p.subnetworks, 1):
        units, auxiliary = ("-".join(part[name]) or "-" for name in ("units", "auxiliary"))
        table.add_row(str(number), units, auxiliary, format_bytes(part["peak_bytes"]))
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


def fit_table(answers: list[dict[str, Any]], limit: str) -> Table:
    """The largest batch for each rule."""
    table = Table(title=f"largest batch within {limit}", title_justify="left")
    for column in ("rule", "memory", "batch size", "peak"):
        table.add_column(column, justify="left" if column in ("rule", "memory") else "right")
    for a in answers:
        fits = str(a["batch_size"]) if a["batch_size"] else "none"
        table.add_row(a["rule"], a["memory"], fits, format_bytes(a["peak_bytes"]))
    return table


if __name__ == "__main__":
    sys.exit(main())
