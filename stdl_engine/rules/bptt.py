"""Backpropagation through time: exact gradients through space and time, and memory that grows with T."""

from __future__ import annotations

import torch
from torch import Tensor

from ..memory.spikes import Kept
from ..memory.tracker import mark
from ..planning.subnetworks import Subnetwork
from .base import Rule
from .through_time import ExactSteps


class BPTT(Rule):
    """The whole network at once; after the last time step one backward pass goes through all layers and time steps."""

    online = False
    _frames: list[Kept]
    _total: Tensor

    def learn(self, subnetwork: Subnetwork, t: int, x: Kept) -> Kept:
        mark(step=t, subnetwork=0, phase="forward")
        if self._lesson.runs_again(subnetwork):  # stages take all time steps together, once all are there
            self._frames = [*(self._frames if t else ()), x]
            return x
        output, loss = self.forward(subnetwork, x)
        self._total = loss if t == 0 else self._total + loss
        return output

    def finish(self, subnetwork: Subnetwork) -> None:
        if self._lesson.runs_again(subnetwork):
            self._learn_recomputing(subnetwork)
        else:
            self.backward(subnetwork, self._total)
            del self._total
        super().finish(subnetwork)

    def _learn_recomputing(self, subnetwork: Subnetwork) -> None:
        flow, levels = self._lesson.flows[subnetwork], self._lesson.levels[subnetwork]
        steps = ExactSteps(flow, levels, self.device, self.plan.recompute.segment)
        logits = steps.forward(self._frames)
        del self._frames
        for of_step in logits:
            self._lesson.note(subnetwork, of_step)
        steps.backward(lambda t: self._gradient(subnetwork, logits[t]))

    def _gradient(self, subnetwork: Subnetwork, logits: Tensor) -> Tensor:
        """The gradient of the loss of one time step, scaled if the precision requires it."""
        logits = logits.detach().requires_grad_()
        with torch.enable_grad():
            self.backward(subnetwork, self._lesson.loss(logits))
        assert logits.grad is not None
        return logits.grad
