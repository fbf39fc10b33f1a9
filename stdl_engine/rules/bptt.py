"""Backpropagation through time: exact gradients through space and time, and memory that grows with T."""

from __future__ import annotations

from ..memory.spikes import Kept
from ..memory.tracker import mark
from ..planning.subnetworks import Subnetwork
from .base import Rule
from .recompute import ExactSteps


class BPTT(Rule):
    """The whole network at once; the gradient runs back through all layers and all time steps after the last one."""

    online = False

    def learn(self, subnetwork: Subnetwork, t: int, x: Kept) -> Kept:
        mark(step=t, subnetwork=0)
        if self.recompute != "none":
            self._frames = [x] if t == 0 else [*self._frames, x]
            return x
        output, loss = self.forward(subnetwork, x)
        self._total = loss if t == 0 else self._total + loss
        return output

    def finish(self, subnetwork: Subnetwork) -> None:
        if self.recompute != "none":
            self._recomputing(subnetwork)
            super().finish(subnetwork)
            return
        self.backward(subnetwork, self._total)
        del self._total
        super().finish(subnetwork)

    def _recomputing(self, subnetwork):
        flow = self._flows[subnetwork]
        level, _, segment = self.recompute.partition("/")
        steps = ExactSteps(flow, [int(level)] * len(flow.stages), self.device, int(segment) if segment else None)
        logits = steps.forward(self._frames)
        del self._frames

        def gradient(t):
            leaf = logits[t].detach().requires_grad_()
            self.backward(subnetwork, self.loss(subnetwork, leaf))
            return leaf.grad

        steps.backward(gradient)
