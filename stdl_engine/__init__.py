"""Train spiking networks in a fraction of BPTT's memory."""

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
)
from .neurons import FusedALIF, FusedLIF, FusedPLIF, reset_states

__version__ = "0.1.0"

__all__ = [
    "ATan",
    "Erf",
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
    "lif_step",
    "lif_step_",
    "load",
    "plif_step",
    "reset_states",
]


def __getattr__(name: str):
    """`load` brings plotting and data along: only those who want it wait for them."""
    if name == "load":
        from .runs import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
