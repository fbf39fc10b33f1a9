"""Fused neuron steps; one folder a neuron."""

from .alif import alif_step, alif_step_
from .bits import bits_of
from .lif import lif_step, lif_step_
from .plif import plif_step
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
    "alif_step",
    "alif_step_",
    "bits_of",
    "lif_step",
    "lif_step_",
    "plif_step",
]
