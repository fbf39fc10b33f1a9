"""How much a training step computes: multiply-adds of convolutions and linear layers, counted on shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..neurons import borrowed
from .flow import Flow
from .plan import Recompute, StageKey
from .subnetworks import Subnetwork

FORWARD, BACKWARD = 1, 2
"""The gradients of a layer's input and of its weight take as much as two forward passes."""


@dataclass(frozen=True)
class Work:
    """Multiply-adds of the forward pass of one sample and time step: of every stage, and of the whole plain network."""

    stages: dict[StageKey, int]
    network: int

    @classmethod
    def of(cls, subnetworks: Iterable[Subnetwork], flow: Callable[[Subnetwork], Flow], frame: Tensor) -> Work:
        """Count for subnetworks on fake or meta tensors, given a frame of the same kind."""
        subnetworks = list(subnetworks)
        counts = _multiply_adds(subnetworks, frame)
        stages, network = {}, 0
        for number, part in enumerate(subnetworks):
            row = flow(part)
            for place, stage in enumerate(row.stages):
                layers = (layer for module in stage.piece.modules for layer in module.modules())
                stages[number, stage.name] = sum(counts.get(layer, 0) for layer in layers)
                if place < row.boundary or part.is_last:
                    network += stages[number, stage.name]
        return cls(stages, network)

    def again(self, recompute: Recompute) -> int:
        """Multiply-adds of running stages again."""
        return sum(recompute.level(*key) * work for key, work in self.stages.items())

    def relative(self, recompute: Recompute) -> float:
        """Work of a training step relative to BPTT that recomputes nothing; it is the same for every time step."""
        once = FORWARD + BACKWARD
        return (once * sum(self.stages.values()) + self.again(recompute)) / (once * self.network)


def _multiply_adds(subnetworks: Iterable[Subnetwork], x: Tensor) -> dict[nn.Module, int]:
    """Multiply-adds of each convolution and linear layer, found by running the subnetworks once."""
    counts: dict[nn.Module, int] = {}

    def count(layer: Any, _: Any, output: Tensor) -> None:
        counts[layer] = counts.get(layer, 0) + layer.weight[0].numel() * output[0].numel()

    for subnetwork in subnetworks:
        modules = list(subnetwork.modules())
        layers = [module for module in modules if isinstance(module, nn.Conv2d | nn.Linear)]
        handles = [layer.register_forward_hook(count) for layer in layers]
        with torch.no_grad(), borrowed(modules, training=False, online=True, memory="lean"):
            x = subnetwork.units(x)
            subnetwork.classifier(x)
        for handle in handles:
            handle.remove()
    return counts
