"""Fused neuron steps; one folder per neuron."""

from .alif import alif_sequence, alif_sequence_, alif_step, alif_step_
from .lif import lif_sequence, lif_sequence_, lif_step, lif_step_
from .plif import plif_sequence, plif_sequence_, plif_step, plif_step_
from .small_form import bits_of
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
    "alif_sequence",
    "alif_sequence_",
    "alif_step",
    "alif_step_",
    "bits_of",
    "lif_sequence",
    "lif_sequence_",
    "lif_step",
    "lif_step_",
    "plif_sequence",
    "plif_sequence_",
    "plif_step",
    "plif_step_",
]
