"""What a user may write as a memory budget: a fraction, bytes, or "published"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

UNITS = {
    "": 1,
    "B": 1,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}

SMALLEST_WITHOUT_UNIT = 1000
"""A number above 1 and below this is treated as a mistake, such as 1.5 for a fraction or 24 for gigabytes."""


class OverBudget(ValueError):
    """No plan that may be tried keeps to a budget in bytes; `least` is the smallest budget that one keeps to, if it is
    known."""

    def __init__(self, sentence: str, least: int | None = None) -> None:
        super().__init__(sentence)
        self.least = least


@dataclass(frozen=True)
class Budget:
    """Exactly one of: a fraction of the whole network's footprint, bytes of peak memory, or the published
    configuration.
    """

    fraction: float | None = None
    size: int | None = None
    published: bool = False
    binary: bool = field(default=False, compare=False)
    """Whether it was written in KiB, MiB, GiB or TiB, so that sizes are printed in such units too."""


def parse_budget(budget: float | str | Budget) -> Budget:
    """Read a budget: 0.5 (fraction), 2e9 or "2GiB" (bytes), "published".

    Example:
        >>> parse_budget("2GiB").size
        2147483648
    """
    if isinstance(budget, Budget):
        return budget
    if budget == "published":
        return Budget(published=True)
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-z]*)\s*", budget, re.IGNORECASE)
        if not found or found[2].upper() not in UNITS:
            raise ValueError(
                f'cannot read the budget {budget!r}: write a fraction (0.5), bytes ("2GiB", 2e9) or "published".'
            )
        value = float(found[1])
        if found[2]:
            return _size(value * UNITS[found[2].upper()], budget, binary="I" in found[2].upper())
        budget = value
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise TypeError(
            f'cannot read the budget {budget!r}: write a fraction (0.5), bytes ("2GiB", 2e9) or "published".'
        )
    if 0 < budget <= 1:
        return Budget(fraction=float(budget))
    if 1 < budget < SMALLEST_WITHOUT_UNIT:
        raise ValueError(
            f"the budget {budget!r} is more than the whole network and too few bytes to mean it: "
            'write a fraction up to 1 (0.5), or bytes with their unit ("2GiB").'
        )
    return _size(budget, budget)


def parse_bytes(size: float | str) -> int:
    """Read an amount of memory, "24GiB" or 24e9, as bytes."""
    found = parse_budget(size)
    if found.size is None:
        raise ValueError(f'{size!r} is no amount of memory: write bytes, for example "24GiB" or 24e9.')
    return found.size


def format_bytes(size: float, binary: bool = False) -> str:
    """Bytes for people: "1.74 GB" in powers of 1000, as in the paper, or with `binary` "1.62 GiB" in powers of 1024."""
    base, units = (1024, ("B", "KiB", "MiB", "GiB")) if binary else (1000, ("B", "kB", "MB", "GB"))
    for unit in units[:-1]:
        if abs(size) < base:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= base
    return f"{size:.2f} {units[-1]}"


def _size(value: float, written: float | str, binary: bool = False) -> Budget:
    if not math.isfinite(value) or value < 1:
        raise ValueError(
            f"the budget {written!r} is not positive and finite: "
            'write a fraction up to 1 (0.5), or bytes ("2GiB", 2e9).'
        )
    return Budget(size=int(value), binary=binary)
