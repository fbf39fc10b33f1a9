"""Fused neuron steps; one folder a neuron."""

from .bits import bits_of
from .lif import lif_step, lif_step_
from .surrogate import ATan, Erf, PiecewiseExp, Rectangle, Sigmoid, SoftSign, SuperSpike, Surrogate, Triangle

__all__ = [
    "ATan",
    "Erf",
    "PiecewiseExp",
    "Rectangle",
    "Sigmoid",
    "SoftSign",
    "SuperSpike",
    "Surrogate",
    "Triangle",
    "bits_of",
    "lif_step",
    "lif_step_",
]
