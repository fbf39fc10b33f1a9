"""Backpropagation through time: exact gradients through space and time, and memory that grows with T."""

from __future__ import annotations

from ..memory.spikes import Kept
from ..memory.tracker import mark
from ..planning.subnetworks import Subnetwork
from .base import Rule


class BPTT(Rule):
    """The whole network at once; the gradient runs back through all layers and all time steps after the last one."""

    online = False

    def learn(self, subnetwork: Subnetwork, t: int, x: Kept) -> Kept:
        mark(step=t, subnetwork=0)
        output, loss = self.forward(subnetwork, x)
        self._total = loss if t == 0 else self._total + loss
        return output

    def finish(self, subnetwork: Subnetwork) -> None:
        self.backward(subnetwork, self._total)
        del self._total
        super().finish(subnetwork)
