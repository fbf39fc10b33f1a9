"""Spatial learning through time: the whole network, the past a constant, the gradient of each step added as it ends."""

from __future__ import annotations

from .base import Rule


class SLTT(Rule):
    """Global in space, decoupled in time: what `Rule` does when the network is not cut."""
