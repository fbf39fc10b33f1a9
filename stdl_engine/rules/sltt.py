"""Spatial learning through time: the whole network, with the past as a constant and a backward pass after each step."""

from __future__ import annotations

from .base import Rule


class SLTT(Rule):
    """Global in space, decoupled in time: this is what `Rule` does when the network is not cut."""
