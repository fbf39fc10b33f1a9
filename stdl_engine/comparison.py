"""Several rules on one recipe, one after the other, in one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .files import write_atomically
from .planning.budgets import format_bytes
from .recipes import Recipe
from .rules import RULES


def compare(
    recipe: Recipe,
    rules: Sequence[str],
    out: Path,
    train: Callable[[Recipe, Path, Console], dict[str, Any]],
    console: Console,
) -> list[dict[str, Any]]:
    """Train by each rule in a folder of its own, and save and print the table."""
    for rule in rules:
        if rule not in RULES:
            raise ValueError(f"unknown rule {rule!r}: choose from {', '.join(RULES)}.")
    if len(set(rules)) != len(rules):
        raise ValueError(f"a rule is named twice in {' '.join(rules)}: name each once.")
    summaries = []
    for rule in rules:
        console.rule(rule)
        own = replace(recipe, rule=rule, budget=recipe.budget if rule == "stdl" else None)
        summaries.append(train(own, out / rule, console))
    write_atomically(out / "comparison.json", json.dumps(summaries, indent=2) + "\n")
    write_atomically(out / "comparison.md", markdown(summaries, recipe))
    console.rule()
    console.print(table(summaries, recipe))
    console.print(f"saved in {out}", highlight=False)
    return summaries


HEADINGS = ("rule", "test accuracy", "peak memory", "samples/s", "memory, BPTT = 1", "samples/s, BPTT = 1")


def lines(summaries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One line a rule; the ratios only where BPTT is among them."""
    bptt = next((s for s in summaries if s["rule"] == "bptt"), None)

    def ratio(summary: dict[str, Any], name: str) -> str:
        return "" if bptt is None else f"{summary[name] / bptt[name]:.2f}"

    return [
        (
            s["rule"].upper(),
            f"{s['test_accuracy']:.2%}",
            format_bytes(s["peak_bytes"]),
            f"{s['samples_per_second']:.0f}",
            ratio(s, "peak_bytes"),
            ratio(s, "samples_per_second"),
        )
        for s in summaries
    ]


def title(recipe: Recipe) -> str:
    return (
        f"{recipe.name}: {recipe.model} at width {recipe.width:g}, batch {recipe.batch_size}, T={recipe.steps}, "
        f"{recipe.epochs} epochs, {recipe.memory} memory, seed {recipe.seed}"
    )


def table(summaries: Sequence[dict[str, Any]], recipe: Recipe) -> Table:
    """For the terminal."""
    found = Table(title=title(recipe), title_justify="left")
    for heading in HEADINGS:
        found.add_column(heading, justify="left" if heading == "rule" else "right")
    for line in lines(summaries):
        found.add_row(*line)
    return found


def markdown(summaries: Sequence[dict[str, Any]], recipe: Recipe) -> str:
    """For a document."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *lines(summaries)]
    return f"{title(recipe)}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
