"""One batch while a rule learns from it: how its subnetworks run, the results so far, and what was before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..memory.still import StillImage
from ..planning.flow import Flow
from ..planning.plan import Recompute
from ..planning.subnetworks import Subnetwork


class Lesson:
    """A batch of T time steps on its way through subnetworks.

    Attributes:
        labels: of the samples, [B].
        flows, levels: of every subnetwork, its stages in order and how often each runs again in backward.
        losses: of each subnetwork that has run, the sum over its time steps so far.
        logits: the network's own, the sum over time steps so far; 0 before the first one.
        still: holds what the network's input was convolved to, if that is done once for all time steps.
    """

    still: StillImage | None = None

    def __init__(self, y: Tensor, T: int, flows: dict[Subnetwork, Flow], recompute: Recompute) -> None:
        self.labels, self.T, self.flows = y.long(), T, flows
        self.levels = {
            part: [recompute.level(number, stage.name) for stage in flow.stages]
            for number, (part, flow) in enumerate(flows.items())
        }
        self.losses: dict[Subnetwork, Any] = {}
        self.logits: Any = 0

    def runs_again(self, subnetwork: Subnetwork) -> bool:
        """Whether any of its stages does."""
        return any(self.levels[subnetwork])

    def modules_run_again(self) -> Iterator[nn.Module]:
        """The layers of the stages that run again."""
        for part, flow in self.flows.items():
            for stage, level in zip(flow.stages, self.levels[part], strict=True):
                yield from (layer for module in stage.piece.modules if level for layer in module.modules())

    def loss(self, logits: Tensor) -> Tensor:
        """The loss of one chunk of time, from the logits of its steps in order."""
        steps = len(logits) // len(self.labels)
        if steps == 1:
            return cross_entropy(logits, self.labels) / self.T
        return cross_entropy(logits, self.labels.repeat(steps)) * (steps / self.T)

    def note(self, subnetwork: Subnetwork, logits: Tensor, loss: Tensor | None = None) -> None:
        """Add a chunk of time to the results."""
        logits = logits.detach()
        loss = self.loss(logits) if loss is None else loss.detach()
        self.losses[subnetwork] = self.losses.get(subnetwork, 0) + loss
        if subnetwork.is_last:
            for of_step in logits.split(len(self.labels)):
                self.logits = self.logits + of_step

    def results(self, subnetworks: Sequence[Subnetwork]) -> tuple[list[Tensor], Tensor | None]:
        """The losses of subnetworks, and the network's mean logits if its last one is among them."""
        logits = self.logits / self.T if subnetworks[-1].is_last else None
        return [self.losses[part] for part in subnetworks], logits


class Before:
    """What was before a training step: gradients, which come back after it, and buffers, which come back if it fails
    before the optimizer of their subnetwork has stepped."""

    def __init__(self, trained: Sequence[Subnetwork]) -> None:
        self._gradients = [(p, p.grad) for part in trained for p in part.parameters()]
        self._buffers = {part: [(b, b.clone()) for b in part.buffers()] for part in trained}
        self._unfinished = list(trained)
        for parameter, _ in self._gradients:
            parameter.grad = None

    def finished(self, subnetwork: Subnetwork) -> None:
        """The optimizer of a subnetwork has stepped."""
        self._unfinished.remove(subnetwork)

    @torch.no_grad()
    def restore_buffers(self) -> None:
        for buffer, before in (pair for part in self._unfinished for pair in self._buffers[part]):
            buffer.copy_(before)

    def restore_gradients(self) -> None:
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
