"""The planner beside the paper: peak memory of every published row, plain ("paper") and lean.

python -m bench.memory_table            prints the tables of docs/memory.md
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stdl_engine.building import predict_peak
from stdl_engine.recipes import RECIPES, Recipe, by_rule

RULE_NAMES = ("bptt", "sltt", "decolle", "ell", "stdl")


@dataclass(frozen=True)
class Published:
    """One measurement in the paper."""

    recipe: str
    rule: str
    published_gb: float
    batch_size: int
    steps: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the recipe's."""

    @property
    def label(self) -> str:
        """The rule and the changed settings."""
        return ", ".join([self.rule.upper(), *(f"{NAMES[name]}{value}" for name, value in self.changes.items())])


PUBLISHED_GB = {  # recipe: batch, T, GB for each of RULE_NAMES
    "cifar10": (512, 4, (15.45, 4.88, 2.76, 2.76, 3.51)),
    "cifar100": (512, 4, (39.44, 12.38, 6.07, 6.07, 8.31)),
    "svhn": (512, 4, (7.84, 2.54, 1.81, 1.81, 1.82)),
    "imagenet": (512, 4, (424.35, 144.37, 86.33, 87.83, 106.53)),
    "cifar10-dvs": (100, 10, (99.09, 13.08, 10.03, 10.03, 10.50)),
    "gait-day-dvs": (100, 20, (227.36, 15.49, 8.89, 8.89, 10.91)),
    "har-dvs": (100, 4, (51.20, 15.86, 12.08, 12.10, 12.87)),
}
TIME_STEPS = (
    *((("cifar10", "bptt", T), gb) for T, gb in ((1, 4.56), (2, 8.40), (6, 22.50))),
    *((("cifar10", "stdl", T), gb) for T, gb in ((1, 3.17), (2, 3.51), (6, 3.51))),
)


EVEN = {3: 3.36, 5: 2.63, 7: 2.29, 9: 2.29}
"""K even groups on CIFAR-10, T=1."""
NEURONS = {("bptt", "plif"): 300.92, ("stdl", "plif"): 12.47, ("bptt", "alif"): 308.48, ("stdl", "alif"): 21.42}
"""Other neurons on GAIT-DAY-DVS."""
NAMES = {"groups": "K=", "neuron": ""}


def rows() -> list[Published]:
    """Every published figure this project plans."""
    main = [
        Published(recipe, rule, gb, batch, T)
        for recipe, (batch, T, figures) in PUBLISHED_GB.items()
        for rule, gb in zip(RULE_NAMES, figures, strict=True)
    ]
    over_time = [Published(recipe, rule, gb, 512, T) for (recipe, rule, T), gb in TIME_STEPS]
    even = [Published("cifar10", "even", gb, 512, 1, {"groups": K}) for K, gb in EVEN.items()]
    gait = "gait-day-dvs"
    neurons = [Published(gait, rule, gb, 100, 20, {"neuron": neuron}) for (rule, neuron), gb in NEURONS.items()]
    return main + over_time + even + neurons


def peak_gb(recipe: Recipe, rule: str, memory: str) -> float:
    """Planned peak in GB (1e9 bytes), with one time step after the other."""
    return predict_peak(replace(by_rule(recipe, rule, memory), chunk=1)).peak_bytes / 1e9


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.memory_table", description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", choices=sorted(PUBLISHED_GB), help="only this recipe's rows")
    only = parser.parse_args().recipe
    print("| recipe | net | rule | batch | T | paper GB | planned, paper memory | off | lean | paper / lean |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows():
        if only and row.recipe != only:
            continue
        recipe = replace(RECIPES[row.recipe], batch_size=row.batch_size, steps=row.steps, **row.changes)
        plain, lean = (peak_gb(recipe, row.rule, memory) for memory in ("paper", "lean"))
        off = plain / row.published_gb - 1
        print(
            f"| {row.recipe} | {recipe.model} | {row.label} | {row.batch_size} | {row.steps} "
            f"| {row.published_gb:.2f} | {plain:.2f} | {off:+.1%} | {lean:.2f} | {row.published_gb / lean:.1f}× |",
            flush=True,
        )


if __name__ == "__main__":
    main()
