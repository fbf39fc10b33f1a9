"""Parametric leaky integrate-and-fire, whose decay is learned: see README.md for the equations."""

from .ops import plif_step

__all__ = ["plif_step"]
