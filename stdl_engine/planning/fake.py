"""Tensors with shapes and no numbers, on which the planner runs training steps.

PyTorch's fake tensors do this. A search for a plan calls operators hundreds of thousands of times, with few different
shapes; PyTorch remembers what they returned, but takes longer to look that up than everything else together. So results
are remembered here first, by a key that is quick to make and holds only what these plans can differ in.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn.modules.batchnorm import _BatchNorm

from ..kernels.layout import is_dense
from ..neurons import Neuron
from ..units import Model, forget_hooks


def fake_copy(model: Model) -> Model:
    """The model with every tensor replaced by one of the fake mode in force, and no states."""
    memo: dict[int, Any] = {id(b): fake_like(b) for b in model.buffers()}
    memo |= {id(p): nn.Parameter(fake_like(p), requires_grad=p.requires_grad) for p in model.parameters()}
    with unset_fake_temporarily():  # states would not be fake tensors
        for neuron in (m for m in model.modules() if isinstance(m, Neuron)):
            stateless = copy.copy(neuron)
            stateless.reset()
            memo[id(neuron)] = copy.deepcopy(stateless, memo)
    duplicate = copy.deepcopy(model, memo)
    forget_hooks(duplicate)
    for layer in duplicate.modules():
        if isinstance(layer, _BatchNorm) and layer.momentum is None:
            layer.momentum = 0.1  # a mean over all batches divides by their number, which a fake tensor does not have
    return duplicate


def fake_like(t: Tensor) -> Tensor:
    """A tensor on the CPU with the shape, dtype and memory order of another, which may be a real one."""
    if is_dense(t):
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    return torch.empty(t.shape, dtype=t.dtype)


@contextlib.contextmanager
def faking() -> Iterator[None]:
    """Inside, tensors are fake."""
    with Faking():
        yield


Make = Callable[["Faking", list[FakeTensor]], Any]
"""Makes a result of an operator again from the tensors among its arguments."""


class Faking(FakeTensorMode):
    """PyTorch's mode of fake tensors, which remembers what operators returned for arguments of the same shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.remembered: dict[tuple, Make | None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # what `tensor.device` calls
            return args[0].fake_device
        tensors: list[FakeTensor] = []
        context = func, torch.get_default_dtype(), torch.is_inference_mode_enabled()
        try:
            key = *context, *_described(args, tensors), *_described((kwargs or {}).items(), tensors)
        except _Unusual:
            return self.computed(func, types, args, kwargs)
        make = self.remembered.get(key)
        if make is not None:
            return make(self, tensors)
        result = self.computed(func, types, args, kwargs)
        if key not in self.remembered:
            self.remembered[key] = _maker(func, result, tensors)
        return result

    def computed(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The result by PyTorch's fake kernel. Of batch norm of low-precision maps with float32 weights that has low
        precision statistics; real ones are in float32."""
        result: Any = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten.native_batch_norm.default and args[1] is not None:
            output, *statistics = result
            return output, *(t.to(args[1].dtype) for t in statistics)
        return result


class _Unusual(Exception):
    """Arguments whose result is not remembered."""


_PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}


def _described(values: Iterable[Any], tensors: list[FakeTensor]) -> Iterator[Any]:
    """Everything about arguments that their result can depend on; tensors among them are added to the list."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if value.constant is not None or value.is_sparse:
                raise _Unusual
            tensors.append(value)
            yield value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device
        elif kind in _PLAIN:
            yield kind, value  # 1, 1.0 and True are equal
        elif kind in (list, tuple, torch.Size):
            yield tuple(_described(value, tensors))
        else:
            raise _Unusual


def _maker(func: Any, result: Any, tensors: list[FakeTensor]) -> Make | None:
    """What makes this result again; None if it has to be computed each time."""
    if not isinstance(func, torch._ops.OpOverload) or torch.Tag.inplace_view in func.tags:
        return None
    if isinstance(result, list | tuple):
        makers = [_maker(func, value, tensors) for value in result]
        fresh = [value.untyped_storage()._cdata for value in result if isinstance(value, Tensor)]
        kind = type(result)
        if None in makers or kind not in (list, tuple) or (len(set(fresh)) < len(fresh) and not func.is_view):
            return None
        return lambda mode, tensors: kind(make(mode, tensors) for make in makers if make is not None)
    if result is None:
        return lambda mode, tensors: None
    if type(result) is not FakeTensor or result.constant is not None or result.requires_grad:
        return None
    same = [number for number, tensor in enumerate(tensors) if tensor is result]
    if same:
        return lambda mode, tensors: tensors[same[0]]
    shape, stride, offset, dtype, device = (
        result.shape, result.stride(), result.storage_offset(), result.dtype, result.fake_device
    )  # fmt: skip
    storage = result.untyped_storage()
    sources = [n for n, tensor in enumerate(tensors) if tensor.untyped_storage()._cdata == storage._cdata]

    def fresh_tensor() -> Tensor:
        with torch._C._DisableTorchDispatch():
            return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

    if not sources:
        if offset or storage.nbytes() != fresh_tensor().untyped_storage().nbytes():
            return None
        return lambda mode, tensors: FakeTensor(mode, fresh_tensor(), device)

    def view(mode: Faking, tensors: list[FakeTensor]) -> FakeTensor:
        seen = tensors[sources[0]].untyped_storage()
        with torch._C._DisableTorchDispatch():
            elem = torch.empty(0, dtype=dtype, device="meta").set_(seen, offset, shape, stride)
        return FakeTensor(mode, elem, device)

    return view if func.is_view and len(sources) == 1 else None
