"""Batch norm's output as a tensor whose numbers are computed when someone reads them.

A model's own forward decides what becomes of batch norm's output. Mostly a fused neuron reads it, perhaps after a
shortcut was added, and can compute it as it fires (`Pending`): then the map is never written. Whatever else is done
with the tensor, PyTorch's dispatcher asks for its numbers, and they are written then. To autograd it is a tensor as any
other: its history, hooks, views and in-place changes are PyTorch's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from ..layout import same_strides
from ..small_form import bits_of
from . import ops
from .pending import Pending, written
from .sums import sums_of


class _Numbers:
    """The numbers of a map and of its views: how they are computed, until someone has read them."""

    def __init__(self, x: Tensor, table: Tensor, backend: str) -> None:
        self.x, self.table, self.backend = x, table, backend
        self.added: Tensor | None = None
        self.added_bits: Tensor | None = None
        self.written: Tensor | None = None
        self._reads = [(x, x._version)]

    @property
    def takes_more(self) -> bool:
        """Whether something can be added before they are written."""
        return self.written is None and self.added is None and self.added_bits is None

    def plus(self, other: Tensor) -> _Numbers:
        """The sum with a map of the same shape, or of the same samples for several time steps."""
        sum_ = _Numbers(self.x, self.table, self.backend)
        sum_._reads = [*self._reads]
        sum_.add(other)
        return sum_

    def add(self, other: Tensor) -> None:
        """Become that sum. The bits of spikes do not change with them; a map may not change before it is read."""
        flat = other.flatten(0, other.ndim - self.x.ndim) if other.ndim > self.x.ndim else other
        bits = bits_of(flat) if same_strides(flat.shape, flat.stride(), self.x.stride()) else None
        if bits is not None:
            self.added_bits = bits
        else:
            self.added = flat
            self._reads.append((other, other._version))

    def check(self) -> None:
        """Raise where what they are computed from has changed."""
        for t, version in self._reads:
            if t._version != version:
                raise RuntimeError(
                    f"a tensor of shape {tuple(t.shape)} that batch norm read, or that was added to its output, was "
                    "changed in place before a neuron read that output: change a copy of it, or leave fuse_norms out, "
                    "which for optimize is norms=False."
                )

    def write(self) -> Tensor:
        """The numbers, written if they were not yet."""
        if self.written is None:
            self.check()
            self.written = written(self.x, self.table, self.added, self.added_bits, self.backend)
            self._reads = []
            del self.x, self.added, self.added_bits
        return self.written


class PendingMap(Tensor):
    """Batch norm's output, perhaps with something added, written when its numbers are read. `of_norm` makes one."""

    numbers: _Numbers

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def showing(cls, numbers: _Numbers, shape: Sequence[int]) -> PendingMap:
        """A map of these numbers; more than one may have them."""
        x = numbers.x
        strides = list(x.stride())
        for size in reversed(shape[1 : len(shape) - x.ndim + 1]):
            strides.insert(0, strides[0] * size)
        made = Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=x.dtype, device=x.device)
        made.numbers = numbers
        return made

    def pending(self) -> Pending | None:
        """What a neuron fires from; None if the numbers are written already."""
        numbers = self.numbers
        if numbers.written is not None:
            return None
        numbers.check()
        way = _Way.apply(self)
        more = {"added": numbers.added, "added_bits": numbers.added_bits}
        return Pending(numbers.x, numbers.table, way, backend=numbers.backend, **more)

    def plain(self) -> Tensor:
        """The same as an ordinary tensor."""
        return _Plain.apply(self)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # as every subclass does
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if (later := LATER.get(func)) is not None and (made := later(*args, **kwargs)) is not None:
            return made
        shown: dict[int, PendingMap] = {}

        def dense_of(t: PendingMap) -> Tensor:
            dense = t.numbers.write().view(t.shape)
            shown[id(dense)] = t
            return dense

        def changed(t: Tensor) -> Tensor:
            """The map itself, if its numbers were changed in place."""
            map_ = shown.get(id(t))
            if map_ is not None and map_.shape != t.shape:
                raise RuntimeError(
                    f"{func} would change the shape of batch norm's output in place, from {tuple(map_.shape)} to "
                    f"{tuple(t.shape)}: use the function that returns a new tensor."
                )
            return t if map_ is None else map_

        args, kwargs = tree_map_only(PendingMap, dense_of, (args, kwargs))
        return tree_map_only(Tensor, changed, func(*args, **kwargs))


def _read_by(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, name)

    def read(self: PendingMap, *args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():  # which torch.compile asks under, and of which these numbers are none
            return method(self.plain(), *args, **kwargs)

    return read


for _name in ("data_ptr", "untyped_storage", "storage", "numpy", "tolist", "__array__", "__dlpack__", "__reduce_ex__",
              "__deepcopy__", "__repr__"):  # fmt: skip
    setattr(PendingMap, _name, _read_by(_name))  # they read memory without asking the dispatcher


def of_norm(
    x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None, *, constant: bool,
    shape: torch.Size | None = None, backend: str = "auto",
) -> PendingMap:  # fmt: skip
    """Batch norm's output, of a map and its table, perhaps in a shape with several time steps. With `constant`
    statistics these do not depend on the map."""
    return _Norm.apply(x, weight, bias, table, constant, x.shape if shape is None else shape, backend)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, table: Tensor, constant: bool,
        shape: torch.Size, backend: str,
    ) -> PendingMap:  # fmt: skip
        ctx.constant, ctx.backend = constant, backend
        ctx.save_for_backward(x, table)
        return PendingMap.showing(_Numbers(x, table, backend), shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, table = ctx.saved_tensors
        grad = grad.reshape(x.shape)
        found = sums_of(grad, table)
        sums = ops.norm_sums(grad, x, table, ctx.backend) if found is None else found.sums
        # Never over the gradient: a shortcut, a hook or the user may have it, too.
        gradients = ops.norm_gradients(grad, x, table, sums, ctx.constant, ctx.backend)
        wanted = zip(gradients, ctx.needs_input_grad[:3], strict=True)
        return *(g if is_wanted else None for g, is_wanted in wanted), None, None, None, None


class _Way(torch.autograd.Function):
    """Where the gradient of a map goes, in the shape of batch norm's input and of no size."""

    @staticmethod
    def forward(ctx: Any, map_: PendingMap) -> Tensor:
        ctx.shape, x = map_.shape, map_.numbers.x
        return x.new_zeros(()).expand(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.view(ctx.shape)


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, map_: PendingMap) -> Tensor:
        return map_.numbers.write().view(map_.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def _sum(one: Any, other: Any, *, alpha: float = 1) -> PendingMap | None:
    map_, added = (one, other) if isinstance(one, PendingMap) else (other, one)
    if alpha != 1 or not _can_add(map_, added):
        return None
    return PendingMap.showing(map_.numbers.plus(_ordinary(added)), map_.shape)


def _sum_over(map_: Any, added: Any, *, alpha: float = 1) -> PendingMap | None:
    if alpha != 1 or not isinstance(map_, PendingMap) or not _can_add(map_, added):
        return None
    map_.numbers.add(_ordinary(added))
    return map_


def _can_add(map_: PendingMap, added: Any) -> bool:
    if type(added) not in (Tensor, torch.nn.Parameter, PendingMap) or added.is_inference():
        return False
    if isinstance(added, PendingMap) and added.numbers is map_.numbers:
        return False
    alike = added.shape == map_.shape and added.dtype == map_.dtype and added.device == map_.device
    return alike and added.layout == torch.strided and map_.numbers.takes_more


def _ordinary(t: Tensor) -> Tensor:
    return t.numbers.write().view(t.shape) if isinstance(t, PendingMap) else t


def _viewed(map_: PendingMap, size: Sequence[int]) -> PendingMap | None:
    """A view with other time steps and samples; None for other views."""
    numbers = map_.numbers
    if numbers.written is not None:
        return None
    known = math.prod(n for n in size if n != -1)
    shape = [map_.numel() // max(known, 1) if n == -1 else n for n in size]
    leading = len(shape) - numbers.x.ndim + 1
    same = leading >= 1 and tuple(shape[leading:]) == tuple(numbers.x.shape[1:])
    return PendingMap.showing(numbers, shape) if same and math.prod(shape) == map_.numel() else None


LATER: dict[Any, Callable[..., PendingMap | None]] = {
    torch.ops.aten.add.Tensor: _sum,
    torch.ops.aten.add_.Tensor: _sum_over,
    torch.ops.aten.view.default: _viewed,
}
"""What can be done without the numbers; None where it cannot."""
