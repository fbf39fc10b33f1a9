"""The Triton kernels."""

from .triton_fire import fire, go_back
from .triton_norm import gradients, normalise, statistics, sums

__all__ = ["fire", "go_back", "gradients", "normalise", "statistics", "sums"]
