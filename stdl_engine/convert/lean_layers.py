"""The layers of an optimised model, which keep spikes in a small form in the user's own training loop.

A layer stays the object it is and takes another class, derived from its own and from one of these. Each computes what
the layer did before. Inside a learning rule, which sets `memory_form`, they behave as the engine's own layers.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.nn.modules.utils import _pair

from ..kernels.bits.reference import pack
from ..kernels.operators import transformed
from ..kernels.small_form import attach, bits_of, is_spikes, mark_counts
from ..kernels.spike_conv import spike_conv
from ..memory.computed_again import compute_again
from ..memory.layers import SpikeAvgPool2d, SpikeConv2d, convolve_bits, digits_of, every_pixel
from ..memory.pieces import Carried
from ..memory.spikes import keep, restore, saving
from ..memory.strided import skips_pixels
from ..neurons import Neuron


def must_be_plain() -> bool:
    """Whether torch.compile, a torch.func transform or forward-mode differentiation is active, which can only follow
    plain layers."""
    return torch.compiler.is_compiling() or transformed() or forward_ad._current_level >= 0


class LeanConv2d(SpikeConv2d):
    """`nn.Conv2d` that reads bits if its input is spikes, or sums of up to three, with channels innermost on a CPU."""

    recompute: bool = False
    """Whether backward computes the output of spikes again, so that it need not be kept."""

    def forward(self, x: Tensor | Carried) -> Tensor:
        if isinstance(x, Carried) or self.memory_form is not None:  # in a learning rule
            return super().forward(x)
        if must_be_plain() or x.ndim != 4:
            return super().forward(x)
        stride = self.stride
        if skips_pixels(self):
            x, stride = every_pixel(x, *stride), (1, 1)  # only the pixels that are read are kept
        weight, bias = self.weight, self.bias
        # Under autocast the convolution is in another dtype, in which nothing reads bits.
        kind = x.device.type
        dense = (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)) or why_dense(self)
        digits = None if dense else digits_of(x, weight)
        if digits is None:
            y = self._dense(weight, bias, stride, x)
            if self.recompute and bits_of(x) is not None:
                kept = keep(x)
                compute_again(y, lambda: self._dense(weight, bias, stride, restore(kept)), weight, bias)
            return y
        padding: Any = self.padding  # no name: `why_dense` refuses those
        y = _biased(convolve_bits(x, weight, stride, padding, digits), bias)
        if self.recompute and len(digits) == 1:  # of two it takes as long as a dense convolution
            bits, shape = digits[0], x.shape
            compute_again(y, lambda: _biased(spike_conv(bits, weight, shape, stride, padding), bias), weight, bias)
        return y

    def _dense(self, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], x: Tensor) -> Tensor:
        if stride != self.stride:
            return nn.functional.conv2d(x, weight, bias, groups=self.groups)
        return self._conv_forward(x, weight, bias)


def _biased(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y.add_(bias[:, None, None])


class RecomputedConv2d(LeanConv2d):
    """The same, and backward computes its outputs for spikes again."""

    recompute = True


def why_dense(conv: nn.Conv2d) -> str:
    """Why a convolution cannot read bits; nothing if it can."""
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return f"its padding is {conv.padding_mode if conv.padding_mode != 'zeros' else conv.padding!r}"
    if conv.groups != 1:
        return f"it has {conv.groups} groups"
    if conv.dilation != (1, 1):
        return f"its dilation is {conv.dilation}"
    if conv.in_channels % 16 or conv.out_channels % 16:
        return f"{conv.in_channels} and {conv.out_channels} channels are not both a multiple of 16"
    if conv.in_channels * conv.kernel_size[1] < 48:
        return f"a window of {conv.kernel_size[1]} × {conv.in_channels} inputs a row is less than 48"
    return ""


class LeanAvgPool2d(SpikeAvgPool2d):
    """`nn.AvgPool2d` that keeps nothing of its input."""

    memory_form: str | None = "lean"

    def forward(self, x: Tensor) -> Tensor:
        return nn.AvgPool2d.forward(self, x) if must_be_plain() else super().forward(x)


class _MaxPool(torch.autograd.Function):
    """Keeps the positions of the maxima, in as few bytes as they fit, and nothing of the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *settings: Any) -> Tensor:
        ctx.shape, ctx.settings, ctx.layout = x.shape, settings, suggest_memory_format(x)
        y, places = torch.ops.aten.max_pool2d_with_indices(x, *settings)
        pixels = x.shape[-1] * x.shape[-2]
        ctx.save_for_backward(places.to(torch.int16 if pixels <= 2**15 else torch.int32))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        stand_in = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=ctx.layout)
        grad = grad.contiguous(memory_format=ctx.layout)  # else the kernel copies the input's gradient, which is larger
        grad_x = torch.ops.aten.max_pool2d_with_indices_backward(grad, stand_in, *ctx.settings, places.long())
        return grad_x, *(None for _ in ctx.settings)


class LeanMaxPool2d(nn.MaxPool2d):
    """`nn.MaxPool2d`; the maximum of some spikes is a spike, and is kept in the same small form."""

    def forward(self, x: Tensor) -> Tensor:
        if must_be_plain() or not is_spikes(x):
            return super().forward(x)
        sizes = (list(_pair(size)) for size in (self.kernel_size, self.stride, self.padding, self.dilation))
        y = _MaxPool.apply(x, *sizes, self.ceil_mode)
        if bits_of(x) is None:
            return mark_counts(y)
        attach(y, pack(y))
        return y


class KeepsSpikesSmall(nn.Module):
    """A model that, while it runs, has autograd keep spikes in their small form, whatever reads them. Where other code
    decides what is saved, as torch.utils.checkpoint does, that decision stands."""

    comes_first = True
    """Among the bases of the class that a module takes."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _keeping_small():
            return super().__call__(*args, **kwargs)


def _keeping_small() -> contextlib.AbstractContextManager:
    if must_be_plain() or not torch.is_grad_enabled():
        return contextlib.nullcontext()
    autograd: Any = torch._C._autograd
    taken = autograd._top_saved_tensors_default_hooks(False) is not None
    return contextlib.nullcontext() if taken or not autograd._saved_tensors_hooks_is_enabled() else saving("lean")


class SpikeSum(KeepsSpikesSmall):
    """SpikingJelly's SEW block, whose output is its spikes joined with those of its input, or of its shortcut's neuron:
    whole numbers, which fit one byte."""

    cnf: str
    downsample: nn.Module | None

    def __call__(self, x: Tensor) -> Tensor:
        y = super().__call__(x)
        if must_be_plain():
            return y
        spikes = all(isinstance(neuron, Neuron) for neuron in neurons_that_join(self))
        return mark_counts(y) if spikes and (self.downsample is not None or is_spikes(x)) else y


def neurons_that_join(block: Any) -> list[nn.Module]:
    """The neurons of a SEW block whose spikes are part of its output."""
    last = block.sn3 if hasattr(block, "sn3") else block.sn2
    return [last] if block.downsample is None else [last, block.downsample_sn]


@functools.cache
def lean_class(kind: type, layer: type) -> type[nn.Module]:
    """The class that a module of the class `kind` takes, derived from `kind` and from a class in this file."""
    bases: tuple[type, ...] = (layer,) if issubclass(layer, kind) else (kind, layer)
    if getattr(layer, "comes_first", False):
        bases = (layer, kind)
    members = {"kind": kind, "layer": layer, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, bases, members | {"__doc__": kind.__doc__, "__reduce_ex__": _reduce})


def _reduce(module: Any, protocol: int) -> tuple:
    """For copies and pickles: the class is made at run time and cannot be imported, but the original one can."""
    return _new, (module.kind, module.layer), module.__getstate__()


def _new(kind: type, layer: type) -> nn.Module:
    made = lean_class(kind, layer)
    return made.__new__(made)
