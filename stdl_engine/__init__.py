"""Train spiking networks in a fraction of BPTT's memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers, which import everything anyway
    from .convert import convert_neurons, fuse_norms, optimize, restore, units_from
    from .kernels import (
        ATan,
        Erf,
        PiecewiseExp,
        Rectangle,
        Sigmoid,
        SoftSign,
        SuperSpike,
        Triangle,
        alif_step,
        alif_step_,
        lif_step,
        lif_step_,
        plif_step,
        plif_step_,
    )
    from .models import build_model
    from .neurons import FusedALIF, FusedLIF, FusedPLIF, reset_states
    from .rules import BPTT, DECOLLE, ELL, SLTT, STDL, EvenLocal
    from .runs import load

__version__ = "0.1.0"

_HOMES = {
    ".convert": ("convert_neurons", "fuse_norms", "optimize", "restore", "units_from"),
    ".kernels": (
        "ATan", "Erf", "PiecewiseExp", "Rectangle", "Sigmoid", "SoftSign", "SuperSpike", "Triangle",
        "alif_step", "alif_step_", "lif_step", "lif_step_", "plif_step", "plif_step_",
    ),
    ".models": ("build_model",),
    ".neurons": ("FusedALIF", "FusedLIF", "FusedPLIF", "reset_states"),
    ".rules": ("BPTT", "DECOLLE", "ELL", "SLTT", "STDL", "EvenLocal"),
    ".runs": ("load",),
}  # fmt: skip
"""Where each public name is defined. A module is imported when one of its names is first used, so that importing a
neuron layer does not import training and data."""

_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BPTT",
    "DECOLLE",
    "ELL",
    "SLTT",
    "STDL",
    "ATan",
    "Erf",
    "EvenLocal",
    "FusedALIF",
    "FusedLIF",
    "FusedPLIF",
    "PiecewiseExp",
    "Rectangle",
    "Sigmoid",
    "SoftSign",
    "SuperSpike",
    "Triangle",
    "alif_step",
    "alif_step_",
    "build_model",
    "convert_neurons",
    "fuse_norms",
    "lif_step",
    "lif_step_",
    "load",
    "optimize",
    "plif_step",
    "plif_step_",
    "reset_states",
    "restore",
    "units_from",
]


if not TYPE_CHECKING:  # type checkers would otherwise accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOME[name], __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
