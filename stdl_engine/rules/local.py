"""Local learning with linear classifiers: ELL, DECOLLE and K even groups."""

from __future__ import annotations

import itertools
from typing import Any

from torch import nn

from ..planning.network import check_model
from ..planning.plan import Plan, plan_with_linear_heads
from ..planning.subnetworks import Subnetwork
from .base import Rule


class EvenLocal(Rule):
    """K groups of about equally many units, each of which learns from its own linear classifier."""

    def __init__(self, *args: Any, K: int, **options: Any) -> None:
        self.K = K
        super().__init__(*args, **options)

    def cut(self) -> Plan:
        count = len(self.network.units)
        if not isinstance(self.K, int) or isinstance(self.K, bool) or not 1 <= self.K <= count:
            raise ValueError(f"K is {self.K!r}: this network has {count} units, so K must be 1 to {count}.")
        edges = [
            -(-group * count // self.K) for group in range(self.K + 1)
        ]  # the published configurations have the longer groups first
        return plan_with_linear_heads(self.network, [range(a, b) for a, b in itertools.pairwise(edges)])


class ELL(EvenLocal):
    """Every unit alone, each with a trainable classifier."""

    def __init__(self, model: nn.Sequential, *args: Any, **options: Any) -> None:
        check_model(model)
        super().__init__(model, *args, K=len(model) - 1, **options)


class DECOLLE(ELL):
    """Every unit alone, each with a random classifier that never changes; its gradient still reaches the unit."""

    def build_subnetworks(self) -> list[Subnetwork]:
        subnetworks = super().build_subnetworks()
        for subnetwork in subnetworks:
            if not subnetwork.is_last:
                subnetwork.classifier.requires_grad_(False)
        return subnetworks
