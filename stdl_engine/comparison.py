"""Several rules on one recipe, one after the other, each with one or more seeds, in one table and one picture.

compare.json      what is compared: the recipe, the rules, how many seeds
RULE[-seed-N]/    the folder of each run
comparison.json   the summaries of all runs, once they are over
comparison.md     their table
comparison.png    their curves
log.txt           what was printed, with the time
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from .curves import draw_together
from .locked_folder import LockedFolder
from .planning.budgets import format_bytes
from .printer import Printer
from .recipes import Recipe, as_dict, by_rule, from_dict
from .rules import RULES
from .settings import Between

COMPARED = ("bptt", "sltt", "decolle", "ell", "stdl")
SEEDS = Between(1, 1000)
HEADINGS = ("rule", "test accuracy", "peak memory", "samples/s", "memory, BPTT = 1", "samples/s, BPTT = 1")

Train = Callable[[Recipe, Path], dict[str, Any]]
Resume = Callable[[Path], dict[str, Any]]


class ComparisonFolder(LockedFolder):
    """The files of a comparison, including the folders of its runs."""

    settings_file = "compare.json"
    what = "comparison"

    def refuse_if_taken(self) -> None:
        """Reject a folder that holds a comparison, or a run."""
        super().refuse_if_taken()
        if (self.path / "config.json").exists():
            raise self.taken("run")

    def begin(self, recipe: Recipe, rules: Sequence[str], seeds: int) -> None:
        """Write down what is compared."""
        for rule in rules:
            if rule not in RULES:
                raise ValueError(f"unknown rule {rule!r}: choose from {', '.join(RULES)}.")
        if len(set(rules)) != len(rules):
            raise ValueError(f"a rule is named twice in {' '.join(rules)}: name each once.")
        if problem := SEEDS.problem(seeds):
            raise ValueError(f"--seeds is {seeds}: {problem}.")
        settings = {"rules": list(rules), "seeds": seeds, "recipe": as_dict(recipe)}
        self.write(self.settings_file, json.dumps(settings, indent=2) + "\n")

    def settings(self) -> tuple[Recipe, list[str], int]:
        """What is compared: the recipe, the rules, and how many seeds."""
        path = self.path / self.settings_file
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return from_dict(values["recipe"]), list(values["rules"]), int(values["seeds"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{path} is not what a comparison writes ({error}): start it again.") from error

    def runs(self) -> list[tuple[Recipe, Path]]:
        """The recipe and the folder of every run."""
        recipe, rules, seeds = self.settings()
        return [
            (replace(by_rule(recipe, rule), seed=recipe.seed + number), self.path / _name(rule, recipe, number, seeds))
            for rule in rules
            for number in range(seeds)
        ]


def _name(rule: str, recipe: Recipe, number: int, seeds: int) -> str:
    return rule if seeds == 1 else f"{rule}-seed-{recipe.seed + number}"


def compare(folder: ComparisonFolder, train: Train, resume: Resume, printer: Printer) -> list[dict[str, Any]]:
    """Train with each rule in its own folder, continue runs that were begun, and save and print the table."""
    recipe, _, seeds = folder.settings()
    summaries: list[dict[str, Any]] = []
    curves: dict[str, list[list[dict[str, Any]]]] = {}
    with printer.logging_to(folder.path / "log.txt"):
        for own, path in folder.runs():
            printer.say(f"── {path.name} ".ljust(60, "─"))
            if (path / "summary.json").is_file():
                printer.say("finished before")
                summaries.append(_read_summary(path / "summary.json"))
            elif (path / "config.json").is_file():
                summaries.append(resume(path))
            else:
                summaries.append(train(own, path))
            curves.setdefault(own.rule, []).append(_read_metrics(path / "metrics.jsonl"))
        folder.write("comparison.json", json.dumps(summaries, indent=2) + "\n")
        folder.write("comparison.md", markdown(summaries, recipe, seeds))
        folder.write("comparison.png", draw_together(curves, recipe.name))
        printer.show(table(summaries, recipe, seeds))
        printer.say(f"saved in {folder.path}")
    return summaries


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if not {"rule", "test_accuracy", "peak_bytes", "samples_per_second"} <= summary.keys():
            raise ValueError("figures are missing")
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is not what a run writes ({error}): remove it, and the run will be continued."
        ) from error
    return summary


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all({"epoch", "train_loss", "test_accuracy"} <= row.keys() for row in rows):
            raise ValueError("figures are missing")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not what a run writes ({error}): remove the summary.json beside it, and the run will be "
            "continued."
        ) from error
    return rows


def lines(summaries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One line per rule, with means over its seeds, and ratios if BPTT is among the rules."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for summary in summaries:
        by_name.setdefault(summary["rule"], []).append(summary)

    def mean(rule: str, name: str) -> float:
        return statistics.fmean(s[name] for s in by_name[rule])

    def ratio(rule: str, name: str) -> str:
        return f"{mean(rule, name) / mean('bptt', name):.2f}" if by_name.get("bptt") else ""

    return [
        (
            rule.upper(),
            mean_and_deviation([s["test_accuracy"] for s in own]),
            format_bytes(mean(rule, "peak_bytes")),
            f"{mean(rule, 'samples_per_second'):.0f}",
            ratio(rule, "peak_bytes"),
            ratio(rule, "samples_per_second"),
        )
        for rule, own in by_name.items()
    ]


def mean_and_deviation(shares: Sequence[float]) -> str:
    """Shares in per cent: their mean and, if there are several, their sample standard deviation."""
    if len(shares) == 1:
        return f"{shares[0]:.2%}"
    return f"{statistics.fmean(shares):.2%} ± {100 * statistics.stdev(shares):.2f}"


def title(recipe: Recipe, seeds: int) -> str:
    drawn = f"seed {recipe.seed}" if seeds == 1 else f"seeds {recipe.seed} to {recipe.seed + seeds - 1}"
    return (
        f"{recipe.name}: {recipe.model} at width {recipe.width:g}, batch {recipe.batch_size}, T={recipe.steps}, "
        f"{recipe.epochs} epochs, {recipe.memory} memory, {drawn}"
    )


def table(summaries: Sequence[dict[str, Any]], recipe: Recipe, seeds: int = 1) -> Table:
    """For the terminal."""
    drawn = Table(title=title(recipe, seeds), title_justify="left")
    for heading in HEADINGS:
        drawn.add_column(heading, justify="left" if heading == "rule" else "right")
    for line in lines(summaries):
        drawn.add_row(*line)
    return drawn


def markdown(summaries: Sequence[dict[str, Any]], recipe: Recipe, seeds: int = 1) -> str:
    """For a document."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *lines(summaries)]
    return f"{title(recipe, seeds)}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
