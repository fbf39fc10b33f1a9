"""The PLIF step as torch operators, with shapes for fake tensors and gradients for autograd; users call `plif_step`."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .. import dispatch
from ..bits import attach
from ..layout import empty_like, is_dense, like
from ..lif.ops import check_parameters, check_tensors, empty_bits
from ..registration import LIBRARY, Operator
from ..surrogate import Surrogate, as_surrogate
from . import reference


def plif_step(
    x: Tensor,
    m_prev: Tensor,
    w: Tensor,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    detach_reset: bool = False,
    scale: float = 1.0,
    scale_by_decay: bool = False,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    pack: bool = False,
    online: bool = False,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor]:
    """One step of parametric leaky integrate-and-fire neurons, differentiable in the input, the past and the decay.

    Args:
        x: input current, any shape and strides; float32, float16, bfloat16 or (CPU) float64.
        m_prev: membrane before reset at the previous step, shape of `x`; float32 (float64 for float64 input). Zeros to
            begin with.
        w: one number, the logit of the decay λ = sigmoid(w) that all neurons share.
        threshold: Vth of `m = λ·reset(m_prev) + scale·x`, `spikes = m >= Vth`.
        reset: "soft" (subtract the threshold), "hard" (to `reset_value`) or "none".
        detach_reset: leave the reset out of the gradient.
        scale: factor on the input.
        scale_by_decay: scale the input by 1 - λ as well.
        surrogate: a `Surrogate`, or its name for the default parameter.
        backend: "auto", "triton", "cpu" or "reference".
        pack: also write the spikes as bits, for `kernels.bits.bits_of(spikes)`.
        online: the past is a constant, and the new membrane is cut from the graph.
        overwrite: online only, write the spikes over `x`, which nothing else may need any more, and pack them; they
            take memory of their own where `x` has gaps.

    Returns:
        spikes (dtype of `x`) and m, the membrane before reset, which is the next step's `m_prev`.

    Example:
        >>> m, w = torch.zeros(3), torch.zeros(())
        >>> spikes, m = plif_step(torch.tensor([0.5, 1.0, 2.5]), m, w)
        >>> spikes
        tensor([0., 1., 1.])
    """
    surrogate = as_surrogate(surrogate)
    check_tensors(x, m_prev, backend)
    check_parameters(0.5, threshold, reset)
    if w.numel() != 1 or not w.is_floating_point():
        raise ValueError(
            f"w has shape {tuple(w.shape)} and dtype {w.dtype}: it must be one floating-point number, for example "
            "torch.zeros(())."
        )
    if w.device != x.device:
        raise ValueError(f"w is on {w.device}, the input on {x.device}: move one to the other.")
    if overwrite and not online:
        raise ValueError("overwrite=True is for the online step: pass online=True, or overwrite=False.")
    m_prev = m_prev.detach() if online else m_prev
    w = w.reshape(()).to(m_prev.dtype)
    options = {"reset": reset, "reset_value": reset_value, "detach_reset": detach_reset, "scale": scale}
    if dispatch.choose(backend, x.device) == "reference":
        options |= {"scale_by_decay": scale_by_decay, "surrogate": surrogate}
        spikes, m = reference.plif_step(x, m_prev, w, threshold, **options)
        return spikes, m.detach() if online else m
    shared = (threshold, *options.values(), scale_by_decay, surrogate.form, *surrogate.constants, backend)
    if overwrite and is_dense(x):
        spikes, (m, packed) = x, _plif_step_over_(x, m_prev, w, *shared)
    else:
        spikes, m, packed = _plif_step(x, m_prev, w, *shared, pack)
    if packed.numel() and not torch.compiler.is_compiling():
        attach(spikes, packed)
    return spikes, m.detach() if online else m


_kernels = functools.partial(dispatch.kernels, __package__)


def _fire(
    x, m_prev, w, m, spikes, packed,
    threshold, reset, reset_value, detach_reset, scale, scale_by_decay, form, a, b, backend,
) -> None:  # fmt: skip
    if x.numel():
        options = {"threshold": threshold, "reset": reset, "reset_value": reset_value, "scale": scale}
        options["scale_by_decay"] = scale_by_decay
        _kernels(backend, x.device).forward(x, like(m_prev, x), torch.sigmoid(w), m, spikes, packed, **options)


@Operator
def _plif_step(
    x: Tensor, m_prev: Tensor, w: Tensor, threshold: float, reset: str, reset_value: float, detach_reset: bool,
    scale: float, scale_by_decay: bool, form: str, a: float, b: float, backend: str, pack: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    x = x if is_dense(x) else x.contiguous()
    spikes, m, packed = empty_like(x, x.dtype), empty_like(x, m_prev.dtype), empty_bits(x, pack)
    options = threshold, reset, reset_value, detach_reset, scale, scale_by_decay, form, a, b, backend
    _fire(x, m_prev, w, m, spikes, packed if pack else None, *options)
    return spikes, m, packed


@_plif_step.register_fake
def _(x, m_prev, w, *options):
    x = x if is_dense(x) else x.contiguous()
    return empty_like(x, x.dtype), empty_like(x, m_prev.dtype), empty_bits(x, options[-1])


@Operator
def _plif_backward(
    m: Tensor, grad_spikes: Tensor | None, grad_m: Tensor | None, m_prev: Tensor | None, w: Tensor,
    dtype: torch.dtype, wants_past: bool, wants_w: bool, threshold: float, reset: str, reset_value: float,
    detach_reset: bool, scale: float, scale_by_decay: bool, form: str, a: float, b: float, backend: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grad_x, grad_m_prev, grad_w = _empty_gradients(m, w, dtype, wants_past)
    if not m.numel():
        return grad_x, grad_m_prev, grad_w.zero_()
    grad_spikes, grad_m, past = (None if t is None else like(t, m) for t in (grad_spikes, grad_m, m_prev))
    options = {"threshold": threshold, "reset": reset, "reset_value": reset_value, "scale": scale}
    options |= {"scale_by_decay": scale_by_decay, "detach_reset": detach_reset, "form": form, "a": a, "b": b}
    wanted = grad_x, grad_m_prev if wants_past else None, grad_w if wants_w else None
    _kernels(backend, m.device).backward(m, grad_spikes, grad_m, past, torch.sigmoid(w), *wanted, **options)
    return grad_x, grad_m_prev, grad_w


@_plif_backward.register_fake
def _(m, grad_spikes, grad_m, m_prev, w, dtype, wants_past, *options):
    return _empty_gradients(m, w, dtype, wants_past)


def _empty_gradients(m: Tensor, w: Tensor, dtype: torch.dtype, wants_past: bool) -> tuple[Tensor, Tensor, Tensor]:
    return empty_like(m, dtype), empty_like(m if wants_past else m.new_empty(0), m.dtype), torch.empty_like(w)


_plif_backward.refuse_gradient("the fused PLIF step has")


def _keep(ctx, x, m_prev, w, m, packed, options) -> None:
    """What backward needs: m, which is also the next step's m_prev, and the past where a gradient reads it."""
    ctx.options, ctx.dtype = options, x.dtype
    reset, detach_reset = options[1], options[3]
    _, wants_past, wants_w = ctx.needs_input_grad[:3]
    read = wants_w or (wants_past and not (reset == "none" or (reset == "soft" and detach_reset)))
    ctx.save_for_backward(m, w, *([m_prev] if read else []))
    ctx.mark_non_differentiable(packed)
    ctx.set_materialize_grads(False)


def _gradients(ctx, grad_spikes, grad_m) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if grad_spikes is None and grad_m is None:
        return None, None, None
    m, w, *past = ctx.saved_tensors
    _, wants_past, wants_w = ctx.needs_input_grad[:3]
    m_prev = past[0] if past else m if wants_past else None  # where its value is not read, m stands in for it
    found = _plif_backward(m, grad_spikes, grad_m, m_prev, w, ctx.dtype, wants_past, wants_w, *ctx.options)
    return found[0], found[1] if wants_past else None, found[2] if wants_w else None


def _setup_context(ctx, inputs, output) -> None:
    x, m_prev, w, *options, _ = inputs
    _keep(ctx, x, m_prev, w, output[1], output[2], options)


def _backward(ctx, grad_spikes, grad_m, _):
    return *_gradients(ctx, grad_spikes, grad_m), *(None for _ in ctx.options), None


_plif_step.register_autograd(_backward, setup_context=_setup_context)


# The step over its input changes an argument, which an `Operator` does not: the same registration by hand.
LIBRARY.define(
    "plif_step_over_(Tensor(a!) x, Tensor m_prev, Tensor w, float threshold, str reset, float reset_value, "
    "bool detach_reset, float scale, bool scale_by_decay, str form, float a, float b, str backend) -> (Tensor, Tensor)"
)
_plif_step_over_ = torch.ops.stdl_engine.plif_step_over_.default


@torch.library.impl(LIBRARY, "plif_step_over_", "CompositeExplicitAutograd")
def _(x, m_prev, w, *options):
    dense = x if is_dense(x) else x.contiguous()
    m, packed = empty_like(dense, m_prev.dtype), empty_bits(dense)
    _fire(dense, m_prev, w, m, dense, packed, *options)
    if dense is not x:
        x.copy_(dense)
    return m, packed


@torch.library.register_fake("stdl_engine::plif_step_over_", lib=LIBRARY)
def _(x, m_prev, w, *options):
    x = x if is_dense(x) else x.contiguous()
    return empty_like(x, m_prev.dtype), empty_bits(x)


class _Over(torch.autograd.Function):
    """The step over its input for autograd; the new membrane is a constant."""

    @staticmethod
    def forward(ctx, x, m_prev, w, *options):
        with torch._C._AutoDispatchBelowAutograd():
            m, packed = _plif_step_over_(x, m_prev, w, *options)
        ctx.mark_dirty(x)
        _keep(ctx, x, m_prev, w, m, packed, options)
        ctx.mark_non_differentiable(m, packed)
        return x, m, packed

    @staticmethod
    def backward(ctx, grad_spikes, *_):
        return *_gradients(ctx, grad_spikes, None), *(None for _ in ctx.options)


@torch.library.impl(LIBRARY, "plif_step_over_", "Autograd")
def _(x, m_prev, w, *options):
    return _Over.apply(x, m_prev, w, *options)[1:]
