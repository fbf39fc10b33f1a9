"""Algorithm 1: cut a network into the fewest runs of units that each fit a budget."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence


def partition(footprints: Sequence[float], budget: float, labels: Sequence[str] | None = None) -> list[range]:
    """The fewest runs of consecutive units whose footprints each add up to at most `budget`, in one pass.

    Greedy is optimal here: closing a run later never makes the rest harder.

    Example:
        >>> partition([2, 2, 1, 3], budget=4)
        [range(0, 2), range(2, 4)]
    """
    for index, needed in enumerate(footprints):
        if needed > budget:
            name = labels[index] if labels else f"unit {index}"
            raise ValueError(
                f"{name} alone needs {needed:g} of a budget of {budget:g}: the smallest budget is {max(footprints):g}."
            )
    runs, first, total = [], 0, 0.0
    for index, needed in enumerate(footprints):
        if total + needed > budget:
            runs.append(range(first, index))
            first, total = index, 0.0
        total += needed
    return [*runs, range(first, len(footprints))] if footprints else []


def partition_by(count: int, fits: Callable[[range], bool]) -> list[range]:
    """The same greedy walk where a sum does not decide whether a run fits: each run is as long as `fits` allows.

    The whole rest of the network is tried first, because the last run, which needs no auxiliary network, may fit where
    a shorter one does not. Raises LookupError with the index of the first unit that fits in no run.
    """
    runs, first = [], 0
    while first < count:
        rest = range(first, count)
        if not fits(rest):
            last = first
            while last + 1 < count and fits(range(first, last + 1)):
                last += 1
            if last == first:
                raise LookupError(first)
            rest = range(first, last)
        runs.append(rest)
        first = rest.stop
    return runs


def smallest_budget(count: int, needed: Callable[[range], float]) -> float:
    """The smallest budget with which `partition_by` succeeds, where a run fits if it needs no more than the budget."""
    for budget in sorted({needed(range(first, stop)) for stop in range(1, count + 1) for first in range(stop)}):
        with contextlib.suppress(LookupError):
            partition_by(count, lambda run, budget=budget: needed(run) <= budget)  # type: ignore[misc]  # mypy infers no defaults
            return budget
    return 0.0
