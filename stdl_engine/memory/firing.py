"""Time steps of a neuron layer inside a piece that runs without a graph, replayed when the piece runs again.

What the gradient of a neuron's step needs is its membrane and nothing else. So the neuron itself does not run again:
the graph of its step is recorded, from the spikes to the input, and takes its place when the rest of the piece runs
with a graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..neurons import Neuron
from .recompute import Gradients, enter, leave
from .spikes import Kept, keep, restore


class Fired:
    """One call of a neuron layer, done for good: its spikes, and the graph from them to its input."""

    def __init__(self, small: Kept, root: Tensor | None, slot: list[Tensor | None]) -> None:
        self._small, self._root, self._slot = small, root, slot

    def spikes(self) -> Tensor:
        return restore(self._small).detach()  # another tensor: one with a graph, held here, would make a ring

    def back(self, grad: Tensor | None) -> Tensor | None:
        """The gradient of the input from that of the spikes, unless it was asked for ahead."""
        root, self._root = self._root, None
        if root is not None:
            self._slot.append(grad)
            del grad
            root.backward()
        return self._slot.pop() if self._slot else None

    def back_ahead(self, grad: Tensor | None) -> None:
        """The same before its turn: the next `back` will return what is computed now."""
        self._slot.append(self.back(grad))


class Chain:
    """All calls of a neuron layer in a segment of time, and the keys by which gradients of its states go from each call
    to the one before, and from segment to segment."""

    def __init__(self, gradients: Gradients, neuron: Neuron, steps: range) -> None:
        self.gradients, self.neuron, self.first, self.next = gradients, neuron, steps[0], steps[-1] + 1
        self.calls = 0

    def key_before(self, name: str, call: int) -> object:
        """Of a state before a call."""
        return (self.neuron, name, self.first) if call == 0 else (self.neuron, name, self.first, call)

    def gradients_after(self, names: Iterable[str], call: int) -> list[Tensor | None]:
        """Those of the states after a call. To be asked for when all calls have been made."""
        is_last = call + 1 == self.calls
        keys = ((self.neuron, name, self.next) if is_last else self.key_before(name, call + 1) for name in names)
        return [self.gradients.take(key) for key in keys]


class Firing:
    """One time step of a neuron layer: `record` stands in for the layer first, and `replay` when the piece runs
    again."""

    def __init__(self, chain: Chain, *, unread: bool) -> None:
        self.chain = chain
        self.unread = unread
        """Whether nobody reads the spikes of the second run."""
        self.fired: list[Fired] = []
        """A layer may be called more than once in a time step."""
        self.tick: Tensor | None = None
        """Links each replayed call to the next, so that their backward passes run in turn, even of calls whose spikes
        have no gradient."""

    def record(self, neuron: Neuron, x: Tensor) -> Tensor:
        """A call, done for good."""
        if self.unread and self.fired:
            raise ValueError(
                f"a piece that ends in its {type(neuron).__name__} calls it twice in a time step, and the first spikes "
                "are not its output: leave `ends_in` of the piece out."
            )
        slot: list[Tensor | None] = []  # and not self, which will hold the graph: a ring would keep the state alive
        may_overwrite, neuron.overwrite = neuron.overwrite, False  # autograd has no such thing for the start of a graph
        with torch.enable_grad():
            try:
                spikes, root = self.advance(neuron, enter(x, slot.append), slot)
            finally:
                neuron.overwrite = may_overwrite
        spikes = spikes.detach()
        small = spikes.new_zeros(()).expand(spikes.shape) if self.unread else keep(spikes)
        self.fired.append(Fired(small, root, slot))
        return spikes

    def advance(self, neuron: Neuron, x: Tensor, slot: list[Tensor | None]) -> tuple[Tensor, Tensor | None]:
        """The spikes, and the root of their graph; its backward takes the spikes' gradient from the slot."""
        chain, call = self.chain, self.chain.calls
        for name, state in zip(neuron.state_names, neuron.states(), strict=False):
            setattr(neuron, name, enter(state, chain.gradients.receiver(chain.key_before(name, call))))
        spikes = neuron.advance(x)
        ends = {name: s for name, s in zip(neuron.state_names, neuron.states(), strict=True) if s.requires_grad}
        neuron.detach_state()
        chain.calls += 1
        names = tuple(ends)  # the gradients alone: whoever gives them must not hold the graph
        return spikes, leave([spikes, *ends.values()], lambda: [slot.pop(), *chain.gradients_after(names, call)])

    def replay(self, _: Neuron, x: Tensor) -> Tensor:
        """The same spikes as a function of the input, for a gradient; the layer's state stays as it is."""
        tick = torch.zeros((), device=x.device, requires_grad=True) if self.tick is None else self.tick
        spikes, self.tick = _Replayed.apply(tick, x, self.fired.pop(0))
        return spikes


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tick: Tensor, x: Tensor, fired: Fired) -> tuple[Tensor, Tensor]:
        ctx.fired = fired
        ctx.set_materialize_grads(False)
        return fired.spikes(), tick.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[None, Tensor | None, None]:
        return None, ctx.fired.back(grad), None
