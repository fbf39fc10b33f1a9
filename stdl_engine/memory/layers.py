"""Layers that take spikes and keep as little as they can for backward.

The convolution keeps one bit per spike. PyTorch's backward computes the gradients of input and weight in one call, with
the dense input alive throughout; here the weight's gradient comes first, and the unpacked spikes are freed before the
input's is computed. The average pool keeps nothing: its backward reads only the shape of its input. Both call PyTorch's
own kernels on the same numbers, except where `kernels.spike_conv` convolves the bits themselves: on CPU with channels
innermost in memory, in less time, with its sums taken in another order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch.autograd.function import once_differentiable
from torch.nn.modules.utils import _pair

from ..kernels.bits import planes_of
from ..kernels.small_form import bits_of
from ..kernels.spike_conv import (
    input_gradient,
    spike_conv,
    spike_conv_add_weight_gradient,
    spike_conv_weight_gradient,
    takes,
)
from ..neurons import in_class
from .computed_again import compute_again, computed
from .pieces import Carried, dense
from .spikes import Bits, Saved, pack_saved, subsampled, unpack_saved
from .still import StillImage
from .strided import PixelsFirst, skips_pixels


class _SpikeConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kept: Saved, known: Tensor | None, *settings: Any) -> Tensor:
        """`kept` is what is kept of x. Where that is bits that can be convolved, x is read by nobody and only says
        where the gradient goes. `known` is the output, where it was computed before."""
        ctx.kept, ctx.shape, ctx.settings = kept, x.shape, settings
        ctx.channels_last = torch.channels_last in (suggest_memory_format(x), suggest_memory_format(weight))
        ctx.save_for_backward(weight)
        ctx.parameter = weight  # itself, which has the gradient; what is saved may come back as another tensor
        ctx.from_bits = _reads_bits(kept, weight, settings)
        ctx.channels_last |= ctx.from_bits
        if known is not None:
            return known.view_as(known)
        return _convolution(kept, weight, settings, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        if ctx.kept is None:
            raise RuntimeError(
                "lean memory frees a layer's input in its backward: the same graph cannot be used twice."
            )
        kept, ctx.kept = ctx.kept, None
        stride, padding, *_ = ctx.settings
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1] and ctx.from_bits and (into := _open_gradient(ctx.parameter)) is not None:
            spike_conv_add_weight_gradient(into, kept.small, grad, ctx.shape, stride, padding)
        elif ctx.needs_input_grad[1] and ctx.from_bits:
            grad_weight = spike_conv_weight_gradient(kept.small, grad, ctx.shape, weight.shape, stride, padding)
        elif ctx.needs_input_grad[1]:
            only_weight = [False, True, False]
            grad_weight = torch.ops.aten.convolution_backward(
                grad, unpack_saved(kept), weight, None, *ctx.settings, only_weight
            )[1]
        del kept  # where the input was kept whole, it makes room for its gradient
        if ctx.needs_input_grad[0]:
            grad_x = _input_gradient(ctx, grad, weight)
        return grad_x, grad_weight, None, None, *(None for _ in ctx.settings)


def _open_gradient(weight: Tensor) -> Tensor | None:
    """The gradient that a parameter has from the time steps before, if a kernel may add to it what autograd would add
    afterwards: channels innermost, and nobody waits for the part that this step adds."""
    if not weight.is_leaf or weight.grad is None or weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return None
    grad = weight.grad
    innermost = grad.is_contiguous(memory_format=torch.channels_last) and grad.dtype == weight.dtype
    return None if grad.requires_grad or torch.is_grad_enabled() or not innermost else grad


def _takes(bits: Bits, weight: Tensor, dilation: Sequence[int], groups: int) -> bool:
    return takes(bits.shape, bits.stride, bits.dtype, weight, dilation, groups)


def _reads_bits(kept: Saved, weight: Tensor, settings: Sequence[Any]) -> TypeGuard[Bits]:
    _, _, dilation, *_, groups = settings
    return isinstance(kept, Bits) and _takes(kept, weight, dilation, groups)


def _convolution(kept: Saved, weight: Tensor, settings: Sequence[Any], x: Tensor | None = None) -> Tensor:
    """The convolution of what is kept of its input, or of the input itself where that is at hand and read dense."""
    if _reads_bits(kept, weight, settings):
        stride, padding, *_ = settings
        return spike_conv(kept.small, weight, kept.shape, stride, padding)
    return torch.ops.aten.convolution(unpack_saved(kept) if x is None else x, weight, None, *settings)


def _input_gradient(ctx: Any, grad: Tensor, weight: Tensor) -> Tensor:
    stride, padding, dilation, *_, groups = ctx.settings
    if ctx.from_bits and (found := input_gradient(grad, weight, ctx.shape, stride, padding)) is not None:
        return found
    # A transposed convolution is the same kernel as `convolution_backward`, which would ask for the input, and on CPU
    # copy whatever stood in for it, only to read its shape.
    weight = _channels_last(weight) if ctx.channels_last else weight.contiguous()
    sizes = zip(ctx.shape[2:], grad.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    left = [x + 2 * pad - step * (y - 1) - apart * (kernel - 1) - 1 for x, y, kernel, step, pad, apart in sizes]
    return torch.ops.aten.convolution(grad, weight, None, stride, padding, dilation, True, left, groups)


def _channels_last(weight: Tensor) -> Tensor:
    """The weight in that order, and with strides that say so for a kernel of 1 × 1 too, which has any order."""
    _, channels, height, width = weight.shape
    strides = (channels * height * width, 1, channels * width, channels)
    return weight.contiguous(memory_format=torch.channels_last).as_strided(weight.shape, strides)


class _BitConv(torch.autograd.Function):
    """A convolution of spikes, or of sums of up to three, of which their binary digits are kept. It keeps them as any
    node keeps what it saves, in a graph that is not ours to free."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], *planes: Tensor
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(weight, *planes)
        ctx.shape, ctx.settings = x.shape, (stride, padding, [1, 1], False, [0, 0], 1)
        ctx.from_bits = ctx.channels_last = True
        if len(planes) == 1:
            return spike_conv(planes[0], weight, x.shape, stride, padding)
        # Two convolutions of bits take as long as a dense one. For the weight's gradient they are faster.
        return torch.ops.aten.convolution(x, weight, None, *ctx.settings)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *planes = ctx.saved_tensors
        stride, padding, *_ = ctx.settings
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight, *higher = (
                spike_conv_weight_gradient(plane, grad, ctx.shape, weight.shape, stride, padding) for plane in planes
            )
            for twos in higher:
                grad_weight.add_(twos, alpha=2)
        if ctx.needs_input_grad[0]:
            grad_x = _input_gradient(ctx, grad, weight)
        return grad_x, grad_weight, None, None, *(None for _ in planes)


def digits_of(x: Tensor, weight: Tensor) -> tuple[Tensor, ...] | None:
    """The binary digits of spikes, or of sums of up to three, for `convolve_bits`; None where x is neither, or the
    kernels do not take it."""
    if not takes(x.shape, x.stride(), x.dtype, weight, (1, 1), 1):
        return None
    bits = bits_of(x)
    return planes_of(x) if bits is None else (bits,)


def convolve_bits(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], digits: tuple[Tensor, ...]
) -> Tensor:
    """The convolution of x by its digits, which are all that is kept of it. The graph may be used more than once."""
    return _BitConv.apply(x, weight, list(stride), list(padding), *digits)


def every_pixel(x: Tensor, down: int, right: int) -> Tensor:
    """Every n-th pixel of a map in memory of its own, with a small form if the map has one."""
    return _Pixels.apply(x, down, right, suggest_memory_format(x))


class _Pixels(torch.autograd.Function):
    """Every n-th pixel of spikes, as a map of its own with its own small form; nothing is kept for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, down: int, right: int, layout: torch.memory_format) -> Tensor:
        ctx.shape, ctx.layout, ctx.step = x.shape, layout, (down, right)
        return subsampled(x, down, right)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        down, right = ctx.step
        grad_x = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=ctx.layout).zero_()
        grad_x[:, :, ::down, ::right] = grad
        return grad_x, None, None, None


class _PixelsOfBits(_Pixels):
    """The same where spikes are held as bits: of their shape, of no size."""

    @staticmethod
    def forward(ctx: Any, way: Tensor, down: int, right: int, layout: torch.memory_format) -> Tensor:
        ctx.shape, ctx.layout, ctx.step = way.shape, layout, (down, right)
        return way.new_zeros(()).expand(way[:, :, ::down, ::right].shape)


def _every_pixel_of_bits(x: Tensor | Carried, down: int, right: int) -> Carried | None:
    """Every n-th pixel of spikes that are held as bits, of which no dense map is made; None where there are none, or
    where pixels are not whole bytes."""
    found = x.bits() if isinstance(x, Carried) else None
    chosen = None if found is None else found[1].pixels(down, right)
    if found is None or chosen is None:
        return None
    return Carried.fired(_PixelsOfBits.apply(found[0], down, right, found[1].layout), chosen)


class _SpikePool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *settings: Any) -> Tensor:
        ctx.shape, ctx.settings, ctx.layout = x.shape, settings, suggest_memory_format(x)
        return torch.ops.aten.avg_pool2d(x, *settings)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        stand_in = grad.new_empty(1).expand(ctx.shape)
        grad_x = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=ctx.layout)
        torch.ops.aten.avg_pool2d_backward.grad_input(grad, stand_in, *ctx.settings, grad_input=grad_x)
        return grad_x, *(None for _ in ctx.settings)


class SpikeConv2d(PixelsFirst):
    """`nn.Conv2d`; with memory "lean" its input is kept as bits where it has them, and freed before the gradient of the
    input is made (not with a bias, or padding other than zeros: those take PyTorch's own way back)."""

    memory_form: str | None = None
    still: StillImage | None = None
    """Set while an image is shown at every time step, which is convolved once."""
    reads_carried = True
    """Whether it takes a map as `Carried`."""
    computes_again: bool = False
    """Set while backward is to compute the output again, so that it need not be kept."""

    def forward(self, carried: Tensor | Carried) -> Tensor:
        ordinary = self.bias is None and self.padding_mode == "zeros" and not isinstance(self.padding, str)
        lean = self.memory_form == "lean" and ordinary and not torch.compiler.is_compiling()
        if not lean:
            x = dense(carried)
            y = super().forward(x)
            return _again(self, super().forward, x, y) if self.computes_again else y
        stride = self.stride
        skips = skips_pixels(self)
        if skips and (chosen := _every_pixel_of_bits(carried, *stride)) is not None:
            carried, stride, skips = chosen, (1, 1), False
        if isinstance(carried, Carried) and not skips and (found := carried.bits()) is not None:
            way, bits = found
            if _takes(bits, self.weight, self.dilation, self.groups) and not torch.is_autocast_enabled("cpu"):
                return self._convolved(way, self.weight, bits, stride)
        if isinstance(carried, Carried) and (shown := carried.repeated()) is not None:
            # Once for all time steps of the chunk, whose gradients are added up before this convolution's backward.
            y = self.forward(shown.small)
            steps = torch.cat([y] * shown.times)
            if (again := computed(y)) is not None:
                compute_again(steps, lambda: torch.cat([again.restore()] * shown.times), self.weight)
            return steps
        image = x = dense(carried)
        if skips:
            x, stride = every_pixel(x, *stride), (1, 1)
        weight = self.weight
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
        if self.still is None or self.still.image is not image:
            return self._convolved(x, weight, None, stride)
        y = self._convolved(x, weight, None, stride, self.still.output)
        self.still.output = y.detach()
        return y

    def _convolved(
        self, x: Tensor, weight: Tensor, bits: Bits | None, stride: tuple[int, ...], known: Tensor | None = None
    ) -> Tensor:
        sizes = [list(pair) for pair in (stride, self.padding, self.dilation)]
        settings = *sizes, False, [0, 0], self.groups
        kept = pack_saved(x) if bits is None else bits
        y = _SpikeConv.apply(x, weight, kept, known, *settings)
        if self.computes_again:
            compute_again(y, lambda: _convolution(kept, weight, settings), weight)
        return y


def computing_again(modules: Iterable[nn.Module]) -> contextlib.AbstractContextManager[None]:
    """Inside, backward computes the outputs of convolutions and linear layers again, where something would keep them:
    batch norm does."""
    layers = (module for module in dict.fromkeys(modules) if isinstance(module, nn.modules.conv._ConvNd | nn.Linear))
    return in_class(layers, _computing_again, computes_again=True)


@functools.cache
def _computing_again(kind: Any) -> type[nn.Module]:
    if issubclass(kind, SpikeConv2d):
        return kind

    class Again(kind):
        def forward(self, x: Tensor) -> Tensor:
            return _again(self, super().forward, x, super().forward(x))

    Again.__name__ = Again.__qualname__ = kind.__name__
    return Again


def _again(layer: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The output of a layer, which is computed again from what the layer keeps of its input."""
    if torch.compiler.is_compiling() or not y.requires_grad:
        return y
    kept = pack_saved(x)
    if isinstance(kept, Bits) or all(p.requires_grad for p in layer.parameters()):  # else nobody keeps a dense input
        compute_again(y, lambda: forward(unpack_saved(kept)), *layer.parameters())
    return y


class SpikeAvgPool2d(nn.AvgPool2d):
    """`nn.AvgPool2d`; with memory "lean" its input is not kept at all."""

    memory_form: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.memory_form != "lean" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().forward(x)
        sizes = (list(_pair(size)) for size in (self.kernel_size, self.stride, self.padding))
        return _SpikePool.apply(x, *sizes, self.ceil_mode, self.count_include_pad, self.divisor_override)
