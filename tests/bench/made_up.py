"""Rows that nobody measured, for tests of what is made of rows."""

from __future__ import annotations

from pathlib import Path

from bench.machine import PACKAGES
from bench.results import Row, append
from bench.timing import Spread


def place(**changes: str) -> dict[str, str]:
    """The conditions of a run."""
    where = {"mode": "full", "device": "cpu", "cpu": "Some CPU", "threads": "2", "others": "0.05", "commit": "abc123"}
    return where | dict.fromkeys(PACKAGES, "1.0") | {"date": "2030-01-01T00:00:00+00:00"} | changes


def write(folder: Path, name: str, *rows: dict, **where: str) -> None:
    """Append a run to a results file; a row is its fields, the value among them."""
    made = []
    for fields in rows:
        value = fields.get("value")
        spread = None if value is None else Spread(value * 0.9, value, value * 1.1)
        rest = {key: text for key, text in fields.items() if key != "value"}
        defaults = {"benchmark": name, "spread": spread, "rounds": 5, "dtype": "float32", "conditions": place(**where)}
        made.append(Row(**(defaults | rest)))
    folder.mkdir(parents=True, exist_ok=True)
    append(folder / f"{name}.csv", made)


def kernel_rows(faster: float = 6.0) -> list[dict]:
    """One setting of the kernels benchmark, us against one library."""
    step = {"what": "forward and backward, online, T=1", "shape": "1×2^22"}
    return [
        {**step, "who": "FusedLIF", "unit": "M neurons/s", "value": 100.0},
        {**step, "who": "FusedLIF", "unit": "of copy_", "value": 0.62},
        {**step, "who": "sinabs LIF", "unit": "M neurons/s", "value": 100 / faster},
        {**step, "who": "FusedLIF", "against": "sinabs LIF", "unit": "x", "value": faster, "target": ">= 4"},
    ]
