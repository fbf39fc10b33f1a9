"""Pieces: the parts of a unit that run one after the other, and what goes from one to the next.

A residual block reads its input twice, in its first convolution and where the shortcut is added. Run as a whole it
would hold that map, dense, from the one to the other. Run as two pieces the map is handed over in its small form and
made dense again for the second reader. Pieces are also what recomputation keeps or runs again.

A unit says what its pieces are by a method `pieces()`; a unit without one is a single piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.bits import add_bits_
from ..kernels.norm_lif import Pending
from ..kernels.small_form import attach
from ..neurons import has_hooks
from ..neurons.lif import LeakyNeuron
from .norms import LeanNorm
from .spikes import Bits, Kept, Repeated, keep, restore, small_tensor
from .tracker import note_saved


@dataclass(frozen=True)
class Piece:
    """A part of a unit.

    Attributes:
        run: computes the output from the inputs: a tensor, or spikes of which only the bits were written (`fire`).
        modules: the layers that it runs; between them the pieces of a unit have every layer of the unit.
        takes: its inputs by number: 0 is the input of the unit, n the output of the unit's n-th piece.
        reads_carried: whether `run` is given inputs as `Carried` and makes them dense itself, at the moment it needs
            them. Otherwise it is given tensors.
        ends_in: the neuron layer whose spikes are the output as they are, if there is such a layer.
    """

    run: Callable[..., Tensor | Carried]
    modules: tuple[nn.Module, ...]
    takes: tuple[int, ...] = (0,)
    reads_carried: bool = False
    ends_in: nn.Module | None = None


def pieces_of(unit: Any) -> tuple[Piece, ...]:
    """The pieces of a unit. It is a single one, called as a module, if it names none or has a `forward` that they are
    not the pieces of, if a hook waits for the whole unit, or if it is compiled as a whole."""
    compiled = getattr(unit, "_compiled_call_impl", None) is not None
    if compiled or has_hooks(unit) or not _names_pieces(type(unit)):
        return (Piece(unit, (unit,)),)
    return tuple(replace(piece, reads_carried=False) if _wants_tensors(piece) else piece for piece in unit.pieces())


def _names_pieces(kind: type[nn.Module]) -> bool:
    """Whether a class has pieces, and no subclass of the one that names them has another `forward`."""
    owners = (next((owner for owner in kind.__mro__ if name in vars(owner)), None) for name in ("pieces", "forward"))
    pieces, forward = owners
    return pieces is not None and forward is not None and issubclass(pieces, forward)


def _wants_tensors(piece: Piece) -> bool:
    """Whether a hook waits for one of its layers, or a convolution is none of ours."""
    layers = [layer for module in piece.modules for layer in module.modules()]
    others = (isinstance(layer, nn.Conv2d) and not getattr(layer, "reads_carried", False) for layer in layers)
    return piece.reads_carried and (any(map(has_hooks, layers)) or any(others))


class Carried:
    """A map on its way to the pieces that read it, `reads` times in all.

    The first reader gets the map itself; for later ones it is made again from its small form, if it has one, so that
    nothing dense is held in between. Gradients of all readers add up where the map was made.
    """

    def __init__(self, x: Kept, reads: int = 1, small: Kept | None = None) -> None:
        """`small` is what the map is kept as, where that is known already."""
        if isinstance(x, Tensor) and small is None and reads > 1:
            small = keep(x)
        self._reads = reads
        self._dense = x if isinstance(x, Tensor) else None
        self._small = (None if isinstance(small, Tensor) else small) if isinstance(x, Tensor) else x
        way = isinstance(x, Tensor) and self._small is not None and x.requires_grad
        self._way = _Way.apply(x) if way else None

    @classmethod
    def fired(cls, way: Tensor, bits: Bits) -> Carried:
        """Spikes of which only the bits were written; `way` is where their gradient goes."""
        carried = cls(bits)
        carried._way = way if way.requires_grad else None
        return carried

    def small(self) -> Kept:
        """What spikes that were fired are kept as."""
        assert self._small is not None, "they have no other form"
        note_saved(small_tensor(self._small))
        return self._small

    def end(self) -> Tensor:
        """Where the gradient of spikes that were fired goes."""
        assert isinstance(self._small, Bits)
        return self._small.outline() if self._way is None else self._way

    def dense(self) -> Tensor:
        """The map for one reader; it is held here no longer than it must be."""
        self._reads -= 1
        x = self._dense
        if x is None:
            assert self._small is not None  # a map is held dense, small or both
            return restore(self._small) if self._way is None else _Restored.apply(self._way, self._small)
        if self._small is not None or self._reads <= 0:
            self._dense = None
        return x

    def repeated(self) -> Repeated | None:
        """The image that is shown for several time steps, if that is what the map is."""
        return self._small if isinstance(self._small, Repeated) else None

    def bits(self) -> tuple[Tensor, Bits] | None:
        """For a reader that can do with the bits, if only they are held: where its gradient goes, a tensor of the map's
        shape and of no size, and the bits."""
        if self._dense is not None or not isinstance(self._small, Bits):
            return None
        return self._small.outline() if self._way is None else self._way, self._small


def dense(x: Tensor | Carried) -> Tensor:
    """A piece's input as a tensor."""
    return x if isinstance(x, Tensor) else x.dense()


def end_of(y: Tensor | Carried) -> Tensor:
    """Where the gradient of a piece's output goes."""
    return y if isinstance(y, Tensor) else y.end()


def small_form(y: Tensor | Carried) -> Kept:
    """What a piece's output is kept as, cut from the graph."""
    return keep(y.detach()) if isinstance(y, Tensor) else y.small()


def convolved(conv: nn.Module, x: Tensor | Carried) -> Tensor:
    """What a convolution gives, which may be one that takes maps only."""
    return conv(x if getattr(conv, "reads_carried", False) else dense(x))


def normed(norm: nn.Module, neuron: nn.Module, x: Tensor) -> Tensor | Pending:
    """What batch norm gives to a neuron: not yet computed, if the neuron can do that as it fires."""
    if isinstance(norm, LeanNorm) and isinstance(neuron, LeakyNeuron) and not has_hooks(norm):
        pending = norm.pending(x)
        if pending is not None:
            return pending if neuron.takes(pending) else pending.dense()
    return output_of(norm, x)


def fire(neuron: nn.Module, current: Tensor | Pending) -> Tensor | Carried:
    """The spikes of a neuron, only as bits if its input is not yet computed."""
    if isinstance(current, Tensor):
        return neuron(current)
    assert isinstance(neuron, LeakyNeuron), "no other takes such an input"
    way, bits = neuron.fire(current, dense=False)
    x = current.x
    return Carried.fired(way, Bits(bits, x.shape, x.stride(), x.dtype))


def fire_dense(neuron: nn.Module, current: Tensor | Pending) -> Tensor:
    """The spikes of a neuron as a map."""
    if isinstance(current, Tensor):
        return neuron(current)
    assert isinstance(neuron, LeakyNeuron), "no other takes such an input"
    spikes, bits = neuron.fire(current, dense=True)
    attach(spikes, bits)
    return spikes


def fire_over(neuron: nn.Module, current: Tensor | Pending) -> Tensor:
    """The same, as a map that lean memory may write over: a copy, if a hook may hold the map itself."""
    spikes = fire_dense(neuron, current)
    return spikes.clone() if has_hooks(neuron) else spikes


def output_of(layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer gives, as a map that lean memory may write over: a copy, if a hook may hold the map itself."""
    output = layer(x)
    return output.clone() if has_hooks(layer) else output


def plus(current: Pending, x: Tensor | Carried) -> Pending | Tensor:
    """The sum of two maps, not yet computed if both have one dtype. Of spikes that are held as bits no dense map is
    made."""
    found = x.bits() if isinstance(x, Carried) else None
    if found is not None and found[1].is_like(current.x):
        return current.plus_spikes(found[0], found[1].small)
    other = dense(x)
    return current.plus(other) if current.dtype == other.dtype else current.dense() + other


def add_over(current: Tensor, x: Tensor | Carried) -> Tensor:
    """The sum of two maps, written over the first if it has its dtype. Of spikes that are held as bits no dense map is
    made."""
    found = x.bits() if isinstance(x, Carried) else None
    if found is not None and found[1].is_like(current):
        return _SpikesAdded.apply(current, *found)
    other = dense(x)
    return current.add_(other) if current.dtype == other.dtype else current + other


class _SpikesAdded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, current: Tensor, way: Tensor, bits: Bits) -> Tensor:
        ctx.mark_dirty(current)
        add_bits_(current, bits.small)
        return current

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return grad, grad, None


class _Way(torch.autograd.Function):
    """Where gradients of a map go: of its shape, of no size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.new_zeros(()).expand(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _Restored(torch.autograd.Function):
    """The map made dense from its small form."""

    @staticmethod
    def forward(ctx: Any, way: Tensor, small: Kept) -> Tensor:
        return restore(small)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
