"""Train spiking networks in a fraction of BPTT's memory."""

from .kernels import ATan, Erf, PiecewiseExp, Rectangle, Sigmoid, SoftSign, SuperSpike, Triangle, lif_step, lif_step_
from .neurons import FusedLIF, reset_states

__version__ = "0.1.0"

__all__ = [
    "ATan",
    "Erf",
    "FusedLIF",
    "PiecewiseExp",
    "Rectangle",
    "Sigmoid",
    "SoftSign",
    "SuperSpike",
    "Triangle",
    "lif_step",
    "lif_step_",
    "reset_states",
]
