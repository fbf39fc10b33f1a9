"""The kernels for CPU."""

from .cpu_fire import backward as go_back
from .cpu_fire import forward as fire
from .cpu_norm import gradients, normalise, statistics, sums

__all__ = ["fire", "go_back", "gradients", "normalise", "statistics", "sums"]
