"""All time steps of the LIF neuron as one torch operator; users call `lif_sequence`."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .. import dispatch
from ..bits import attach
from ..bits.reference import pack as pack_bits
from ..layout import empty_like, is_dense, like
from ..registration import Operator
from ..surrogate import Surrogate, as_surrogate
from . import reference
from .ops import check_step, empty_bits


def lif_sequence(
    x: Tensor,
    m_prev: Tensor,
    decay: float = 0.1,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    detach_reset: bool = False,
    scale: float = 1.0,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    pack: bool = False,
) -> tuple[Tensor, Tensor]:
    """The steps of a whole sequence in one kernel: what `lif_step` gives step by step, to the last bit.

    Args:
        x: input current, [T, ...] with T at least 1.
        m_prev: membrane before reset at the step before the first, shape of `x[0]`.
        pack: also write the spikes as bits, for `kernels.bits.bits_of(spikes)`.
        decay, threshold, reset, reset_value, detach_reset, scale, surrogate, backend: as for `lif_step`.

    Returns:
        spikes, [T, ...] in the dtype of `x`, and m, the membrane before reset at the last step. For backward one map a
        step is kept, the membrane, and none if no gradient is wanted.

    Example:
        >>> spikes, m = lif_sequence(torch.tensor([[0.8], [0.8]]), torch.zeros(1), decay=0.5)
        >>> spikes.flatten(), m
        (tensor([0., 1.]), tensor([1.2000]))
    """
    surrogate = as_surrogate(surrogate)
    if x.ndim == 0 or len(x) == 0:
        raise ValueError(f"the sequence has shape {tuple(x.shape)}: pass [T, ...] with at least one time step.")
    check_step(x[0], m_prev, decay, threshold, reset, backend)
    options = {"reset": reset, "reset_value": reset_value, "scale": scale, "detach_reset": detach_reset}
    if dispatch.choose(backend, x.device) == "reference":
        return reference.lif_sequence(x, m_prev, decay, threshold, surrogate=surrogate, **options)
    keep = torch.is_grad_enabled() and (x.requires_grad or m_prev.requires_grad)
    in_kernel = pack and m_prev.numel() % 8 == 0  # else a byte would hold bits of two steps
    options = (decay, threshold, *options.values(), surrogate.form, *surrogate.constants, backend)
    spikes, m, _, packed = _lif_sequence(x, m_prev, *options, keep, in_kernel)
    if pack and not torch.compiler.is_compiling():
        attach(spikes, packed if in_kernel else pack_bits(spikes.detach()))
    return spikes, m


_kernels = functools.partial(dispatch.kernels, __package__, prefix="multistep_")


def _by_step(x: Tensor) -> Tensor:
    """The sequence with its steps one after the other in memory, each dense; no copy if it is so already."""
    step = x[0]
    return x if is_dense(step) and (len(x) == 1 or x.stride(0) == step.numel()) else x.contiguous()


def _empty_steps(pattern: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Unwritten maps with the strides of the dense tensor `pattern`, one after the other."""
    strides = (pattern.numel(), *pattern.stride())
    return torch.empty_strided((steps, *pattern.shape), strides, dtype=dtype, device=pattern.device)


def _empty_results(x: Tensor, m_prev: Tensor, keep: bool, pack: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kept = _empty_steps(x[0], len(x) - 1, m_prev.dtype) if keep else m_prev.new_empty(0)
    return _empty_steps(x[0], len(x), x.dtype), empty_like(x[0], m_prev.dtype), kept, empty_bits(x, pack)


@Operator
def _lif_sequence(
    x: Tensor, m_prev: Tensor, decay: float, threshold: float, reset: str, reset_value: float, scale: float,
    detach_reset: bool, form: str, a: float, b: float, backend: str, keep: bool, pack: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x = _by_step(x)
    spikes, m, kept, packed = _empty_results(x, m_prev, keep, pack)
    if x.numel():
        options = {"decay": decay, "threshold": threshold, "reset": reset, "reset_value": reset_value, "scale": scale}
        results = kept if keep else None, m, spikes, packed if pack else None
        _kernels(backend, x.device).forward(x, like(m_prev, x[0]), *results, **options)
    return spikes, m, kept, packed


@_lif_sequence.register_fake
def _(x, m_prev, *options):
    return _empty_results(_by_step(x), m_prev, *options[-2:])


@Operator
def _lif_sequence_backward(
    m: Tensor, kept: Tensor, grad_spikes: Tensor | None, grad_m: Tensor | None, m_prev: Tensor | None,
    dtype: torch.dtype, decay: float, threshold: float, reset: str, reset_value: float, scale: float,
    detach_reset: bool, form: str, a: float, b: float, backend: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    grad_x, grad_m_prev = _empty_gradients(m, kept, m_prev, dtype)
    if m.numel():
        grad_spikes = None if grad_spikes is None else like(grad_spikes, grad_x)
        grad_m, past = (None if t is None else like(t, m) for t in (grad_m, m_prev))
        options = {"decay": decay, "threshold": threshold, "reset": reset, "reset_value": reset_value, "scale": scale}
        options |= {"detach_reset": detach_reset, "form": form, "a": a, "b": b}
        grad_past = None if past is None else grad_m_prev
        _kernels(backend, m.device).backward(kept, m, grad_spikes, grad_m, past, grad_x, grad_past, **options)
    return grad_x, grad_m_prev


@_lif_sequence_backward.register_fake
def _(m, kept, grad_spikes, grad_m, m_prev, dtype, *options):
    return _empty_gradients(m, kept, m_prev, dtype)


def _empty_gradients(m: Tensor, kept: Tensor, m_prev: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    past = empty_like(m if m_prev is not None else m.new_empty(0), m.dtype)
    return _empty_steps(m, len(kept) + 1, dtype), past


_lif_sequence_backward.refuse_gradient("the fused LIF steps have")


def _setup_context(ctx, inputs, output) -> None:
    x, m_prev, *options, _, _ = inputs
    _, m, kept, packed = output
    ctx.options, ctx.dtype = options, x.dtype
    ctx.save_for_backward(m, kept, *([m_prev] if ctx.needs_input_grad[1] else []))
    ctx.mark_non_differentiable(kept, packed)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_spikes, grad_m, *_):
    nothing = (None,) * (len(ctx.options) + 2)
    if grad_spikes is None and grad_m is None:
        return None, None, *nothing
    m, kept, *past = ctx.saved_tensors
    m_prev = past[0] if past else None
    grad_x, grad_m_prev = _lif_sequence_backward(m, kept, grad_spikes, grad_m, m_prev, ctx.dtype, *ctx.options)
    return grad_x, grad_m_prev if past else None, *nothing


_lif_sequence.register_autograd(_backward, setup_context=_setup_context)
