"""The kernels for CPU."""

from .cpu_fire import backward as go_back
from .cpu_fire import forward as fire
from .cpu_gradients import gradients
from .cpu_norm import normalise
from .cpu_statistics import statistics
from .cpu_sums import sums

__all__ = ["fire", "go_back", "gradients", "normalise", "statistics", "sums"]
