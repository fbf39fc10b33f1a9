"""The time steps of a neuron whose input is batch norm's output: the neuron's operators, with a table for its input.

To autograd the input is a map of its shape and of no size, which says where the gradient goes (`pending.py`). So are
the spikes if only their bits are written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import dispatch
from ..bits import packed_size
from ..layout import empty_batch, empty_like, empty_steps
from ..lif.ops import Options
from ..operators import Operator, saved_tensors
from ..steps import advanced_too_early, follows, if_any, like_if_there, versions
from .operands import Fire, GoBack
from .ops import shape_of
from .pending import Pending
from .sums import attach


class Call(NamedTuple):
    """What is asked of the kernel besides its equation."""

    online: bool
    """Whether every step takes the past as a constant."""
    keep: bool
    """Whether the membranes of all steps but the last are kept for backward."""
    keep_first: bool
    """Whether the membrane before the first step, which is written over, is kept as well."""
    dense: bool
    """Whether the spikes are written as a map, too."""


class Wanted(NamedTuple):
    """What is asked of a backward."""

    online: bool
    wants_past: bool
    wants_w: bool


def _operands(
    x: Tensor, m: Tensor, w: Tensor | None, table: Tensor, added: Tensor | None, added_bits: Tensor | None,
    call: Call, in_place: bool,
) -> tuple[Fire, Tensor]:  # fmt: skip
    """All operands, results unwritten, and the spikes as they are given."""
    steps = len(x) // len(m)
    spikes = empty_batch(m, steps, x.dtype) if call.dense else None
    given = x.new_zeros(()).expand(x.shape) if spikes is None else spikes
    kept = (steps - 1 if call.keep else 0) + call.keep_first
    operands = Fire(
        shape_of(x, steps, len(table)),
        x,
        table,
        m,
        m if in_place else empty_like(m, m.dtype),
        torch.empty(packed_size(x.numel()), dtype=torch.uint8, device=x.device),
        spikes,
        empty_steps(m, kept, m.dtype) if kept else None,
        like_if_there(added, x),
        added_bits,
        None if w is None else torch.sigmoid(w),
    )
    return operands, given


def _forward_operator(name: str, *, in_place: bool) -> Operator:
    """The steps as an operator whose state is new or `in_place`."""

    def new(o: Fire, spikes: Tensor) -> tuple[Tensor | None, ...]:
        return (spikes, o.m_kept, o.bits) if in_place else (spikes, o.m, o.m_kept, o.bits)

    def compute(
        way: Tensor, m: Tensor, w: Tensor | None, x: Tensor, table: Tensor, added: Tensor | None,
        added_bits: Tensor | None, options: Options, call: Call,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        operands, spikes = _operands(x, m, w, table, added, added_bits, call, in_place)
        given = operands
        if call.keep_first:
            assert operands.m_kept is not None, "there is a map for each membrane that is kept"
            operands.m_kept[0].copy_(m)
            given = operands._replace(m_kept=operands.m_kept[1:] if len(operands.m_kept) > 1 else None)
        dispatch.kernels(__package__, options.backend, x.device).fire(given, options)
        return new(operands, spikes)

    def fake(
        way: Tensor, m: Tensor, w: Tensor | None, x: Tensor, table: Tensor, added: Tensor | None,
        added_bits: Tensor | None, options: Options, call: Call,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        return new(*_operands(x, m, w, table, added, added_bits, call, in_place))

    results = (Tensor,) * (3 if in_place else 4)
    return Operator(
        name,
        compute,
        fake,
        types={"return": tuple.__class_getitem__(results)},
        mutates=("m",) if in_place else (),
        keep=_keep_online if in_place else _keep,
        backward=_go_back_online if in_place else _go_back,
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    _, m_first, w, x, table, _, _, options, call = inputs
    _, m, m_kept, bits = output
    ctx.past = not call.online and ctx.needs_input_grad[1]
    ctx.options, ctx.call = options, call
    reads_first = ctx.needs_input_grad[2] or (ctx.past and options.reads_past)
    ctx.save_for_backward(m, if_any(m_kept), m_first if reads_first else None, w, x, table)
    ctx.mark_non_differentiable(*(t for t in (m_kept, bits, m if call.online else None) if t is not None))
    ctx.set_materialize_grads(False)


def _go_back(ctx: Any, grad_spikes: Tensor | None, grad_m: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if grad_spikes is None and grad_m is None:
        return (None,) * 9
    m, m_kept, m_first, w, x, table = saved_tensors(ctx, "the fused neuron")
    wanted = Wanted(ctx.call.online, ctx.past, ctx.needs_input_grad[2])
    gradients = norm_lif_backward(m, x, table, grad_spikes, grad_m, m_kept, m_first, w, ctx.options, wanted)
    return _given(ctx, table, *gradients)


def _keep_online(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    _, m, w, x, table, _, _, options, call = inputs
    _, m_kept, bits = output
    ctx.options, ctx.call, ctx.past, ctx.state, ctx.version = options, call, False, m, versions((m, None))
    ctx.save_for_backward(if_any(m_kept), w, x, table)
    ctx.mark_non_differentiable(*(t for t in (m_kept, bits) if t is not None))
    ctx.set_materialize_grads(False)


def _go_back_online(ctx: Any, grad_spikes: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if versions((ctx.state, None)) != ctx.version:
        raise advanced_too_early("lif")
    if grad_spikes is None:
        return (None,) * 9
    m_kept, w, x, table = saved_tensors(ctx, "the fused neuron")
    m_first = None
    if ctx.call.keep_first:
        m_first, m_kept = m_kept[0], if_any(m_kept[1:])
    wanted = Wanted(True, False, ctx.needs_input_grad[2])
    gradients = norm_lif_backward(ctx.state, x, table, grad_spikes, None, m_kept, m_first, w, ctx.options, wanted)
    return _given(ctx, table, *gradients)


def _given(
    ctx: Any, table: Tensor, grad: Tensor, sums: Tensor, grad_m_first: Tensor | None, grad_w: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients of all inputs, of which that of batch norm's output carries the sums."""
    attach(grad, sums, table)
    wants_m, wants_w = ctx.needs_input_grad[1:3]
    return grad, grad_m_first if wants_m else None, grad_w if wants_w else None, *(None,) * 6


def _backward(
    m: Tensor, x: Tensor, table: Tensor, grad_spikes: Tensor | None, grad_m: Tensor | None, m_kept: Tensor | None,
    m_first: Tensor | None, w: Tensor | None, options: Options, wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    found = _empty_gradients(m, x, table, grad_spikes, grad_m, m_kept, m_first, w, options, wanted)
    grad, sums, grad_m_first, grad_w = found
    operands = GoBack(
        shape_of(x, len(x) // len(m), len(table)),
        x,
        table,
        m,
        grad,
        sums,
        like_if_there(grad_spikes, x),
        like_if_there(grad_m, m),
        m_kept,
        m_first,
        grad_m_first,
        None if w is None else torch.sigmoid(w),
        grad_w,
        wanted.online,
    )
    dispatch.kernels(__package__, options.backend, x.device).go_back(operands, options)
    return found


def _empty_gradients(
    m: Tensor, x: Tensor, table: Tensor, grad_spikes: Tensor | None, grad_m: Tensor | None, m_kept: Tensor | None,
    m_first: Tensor | None, w: Tensor | None, options: Options, wanted: Wanted,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    sums = torch.empty(len(table), 2, x.shape[1], dtype=torch.float64, device=x.device)
    grad_m_first = empty_like(m, m.dtype) if wanted.wants_past else None
    return empty_like(x, x.dtype), sums, grad_m_first, torch.empty_like(w) if wanted.wants_w and w is not None else None


def fire(
    pending: Pending, m: Tensor, w: Tensor | None, options: Options, *, online: bool, in_place: bool, dense: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Spikes, their bits and the new membrane, which is `m` itself if the state is advanced `in_place`; online only.

    Args:
        pending: the input: one time step, or the samples of several in one batch, where the state has those of one.
        m: membrane before reset, before the first step, in the input's memory order.
        w: the logit of the decay, if it is learned.
        dense: whether the spikes are written as a map; if not, they are a tensor of their shape and of no size, for
            the gradient.
    """
    p, steps = pending, len(pending.x) // len(m)
    keeps = steps > 1 and follows(p.way, w, None if online else m)
    call = Call(online, keeps, in_place and w is not None and follows(w), dense)
    given = p.way, m, w, p.x, p.table, p.added, p.added_bits, options, call
    if in_place:
        spikes, _, bits = norm_lif_(*given)
    else:
        spikes, m, _, bits = norm_lif(*given)
    return spikes, bits, m


norm_lif = _forward_operator("norm_lif_steps", in_place=False)
norm_lif_ = _forward_operator("norm_lif_steps_", in_place=True)
norm_lif_backward = Operator(
    "norm_lif_backward",
    _backward,
    _empty_gradients,
    types={"return": tuple[Tensor, Tensor, Tensor, Tensor]},
    no_gradient=(
        "batch norm and neuron in one pass have no second derivative: leave fuse_norms out, or pass norms=False to "
        'optimize, and backend="reference" to the neuron, to differentiate twice.'
    ),
)
