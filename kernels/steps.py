"""The operators of a neuron: its time steps, the same steps online over the state, and the way back.

Neurons have this in common: a membrane, perhaps a second state (the adaptation), perhaps a learned decay w, and options
of their own. What sets them apart is in the kernels that are called, `cpu.py` and `triton.py` of their folder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from . import dispatch, reference
from .bits import packed_size
from .bits.reference import pack as pack_bits
from .checks import check_tensors, check_writable
from .layout import (
    dense,
    empty_batch,
    empty_like,
    empty_steps,
    in_steps,
    is_dense,
    is_in_samples,
    is_in_steps,
    like,
    same_order,
)
from .operands import Backward, Forward
from .operators import Operator, saved_tensors, transformed
from .small_form import attach


class Options(Protocol):
    """What a neuron's kernels are told besides tensors; a NamedTuple of numbers."""

    @property
    def backend(self) -> str: ...

    @property
    def advance(self) -> bool:
        """Whether a step advances the second state."""

    @property
    def reads_past(self) -> bool:
        """Whether backward reads the past's value."""

    def keywords(self, learned: bool) -> dict[str, Any]:
        """The same for the plain step, where the decay is `learned` or not."""


class Call(NamedTuple):
    """What is asked of a kernel besides its equation."""

    sequence: bool
    """Whether the input is several time steps, [T, ...] or one after the other in one batch, [T·B, ...]; else it is
    one."""
    online: bool
    """Whether every step takes the past as a constant."""
    keep: bool
    """Whether the states of all steps but the last are kept for backward."""
    keep_first: bool
    """Whether the membrane before the first step, which is written over, is kept as well."""
    pack: bool
    """Whether the spikes are also written as bits."""


class Wanted(NamedTuple):
    """What is asked of a backward."""

    sequence: bool
    online: bool
    wants_past: bool
    """Whether the gradients of the states before the first step are wanted."""
    wants_w: bool
    """Whether the gradient of the learned decay is."""
    dtype: torch.dtype
    """Of the input, and so of its gradient."""


Gradients = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]
"""Of the input, of both states before the first step, and of the learned decay."""


class Steps:
    """The operators of one neuron.

    Args:
        name: the neuron, in the names of its operators and in messages.
        options: the NamedTuple of what its kernels are told besides tensors.
        package: the folder of its kernels.
        plain: one step in plain PyTorch, of the input, the states, the decay if it is learned, and `options.keywords`.
    """

    def __init__(
        self, name: str, options: type[Options], package: str, plain: Callable[..., tuple[Tensor, ...]]
    ) -> None:
        self.name, self._options, self._package, self._plain = name, options, package, plain
        self.fresh = self._forward_operator(f"{name}_steps", in_place=False, over=False)
        self.fresh_over = self._forward_operator(f"{name}_steps_over", in_place=False, over=True)
        self.online = self._forward_operator(f"{name}_steps_", in_place=True, over=False)
        self.online_over = self._forward_operator(f"{name}_steps_over_", in_place=True, over=True)
        self.backward = Operator(
            f"{name}_backward",
            self._backward,
            self._empty_gradients,
            types={"options": options, "return": tuple[Tensor, Tensor, Tensor, Tensor]},
            no_gradient=(
                f'the fused {name.upper()} step has no second derivative: pass backend="reference" to differentiate '
                "twice."
            ),
        )

    def advance(
        self, x: Tensor, m: Tensor, adaptation: Tensor | None, w: Tensor | None, options: Options, *,
        sequence: bool = False, online: bool = False, pack: bool = False, overwrite: bool = False,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Spikes and new states, differentiable in the input, the decay and, if not online, the past.

        With `overwrite` the spikes are written over `x`; they take memory of their own where it has gaps.
        """
        states = (m,) if adaptation is None else (m, adaptation)
        steps = _by_step(x, m) if sequence else x
        check_tensors(steps, states, sequence, options.backend)
        if dispatch.choose(options.backend, x.device) == "reference":
            return self._by_reference(x, states, w, options, sequence, online)
        packs = pack and not (sequence and m.numel() % 8) and not transformed()
        call = Call(sequence, online, sequence and follows(x, *states, w), False, packs)
        if overwrite and (is_in_steps(steps) if sequence else is_dense(x)):
            spikes, (m, adaptation, *_, bits) = x, self.fresh_over(x, m, adaptation, w, options, call)
        else:
            spikes, m, adaptation, *_, bits = self.fresh(x, m, adaptation, w, options, call)
        if pack:
            _attach(spikes, bits if packs else None)
        return (spikes, m) if len(states) == 1 else (spikes, m, adaptation if options.advance else states[1])

    def advance_(
        self, x: Tensor, m: Tensor, adaptation: Tensor | None, w: Tensor | None, options: Options, *,
        sequence: bool = False, overwrite: bool = False,
    ) -> Tensor:  # fmt: skip
        """Spikes, which carry their bits; the states, which are constants, are advanced where they lie.

        With `overwrite` the spikes are written over `x`; they take memory of their own where it is laid out in another
        order than the states, which the bits follow.
        """
        states = (m,) if adaptation is None else (m, adaptation)
        steps = _by_step(x, m) if sequence else x
        check_tensors(steps, states, sequence, options.backend)
        check_writable(f"{self.name}_{'sequence' if sequence else 'step'}_", m, adaptation)
        if steps is not x and not is_in_samples(m):  # then no order of one batch has the steps one after the other
            return self.advance_(steps, m, adaptation, w, options, sequence=True).flatten(0, 1)
        if dispatch.choose(options.backend, x.device) == "reference":
            spikes, *new = self._by_reference(x, states, w, options, sequence, online=True)
            reference.write_over(states, new)
            return spikes
        packs = not (sequence and m.numel() % 8)
        call = Call(sequence, True, sequence and follows(x, w), w is not None and follows(w), packs)
        if overwrite and (is_in_steps(steps, m) if sequence else same_order(x, m)):
            spikes, (*_, bits) = x, self.online_over(x, m, adaptation, w, options, call)
        else:
            spikes, *_, bits = self.online(x, m, adaptation, w, options, call)
        _attach(spikes, bits if packs else None)
        return spikes

    def _by_reference(
        self, x: Tensor, states: Sequence[Tensor], w: Tensor | None, options: Options, sequence: bool, online: bool
    ) -> tuple[Tensor, ...]:
        learned = () if w is None else (w,)
        keywords = options.keywords(w is not None)
        steps = _by_step(x, states[0]) if sequence else x
        spikes, *new = reference.steps(
            lambda x, *states: self._plain(x, *states, *learned, **keywords), steps, states, sequence, online
        )
        return (spikes.view(x.shape) if steps.shape != x.shape else spikes, *new)

    def _forward_operator(self, name: str, *, in_place: bool, over: bool) -> Operator:
        """The steps as an operator whose states are new or `in_place`, and whose spikes are new or `over` the input."""

        def new(o: Forward, spikes: Tensor) -> tuple[Tensor | None, ...]:
            """The results that are not written over an argument."""
            kept = o.m_kept, o.adaptation_kept, o.bits
            states = kept if in_place else (o.m, o.adaptation, *kept)
            return states if over else (spikes, *states)

        def compute(
            x: Tensor, m: Tensor, adaptation: Tensor | None, w: Tensor | None, options: Options, call: Call
        ) -> tuple[Tensor | None, ...]:
            operands, spikes = _forward_operands(x, m, adaptation, w, options, call, in_place, over)
            if m.numel():
                kernels = dispatch.kernels(self._package, options.backend, x.device)
                kernels.forward(_without_first(operands) if call.keep_first else operands, options)
            if over and spikes is not x:
                x.copy_(spikes)
            return new(operands, spikes)

        def fake(
            x: Tensor, m: Tensor, adaptation: Tensor | None, w: Tensor | None, options: Options, call: Call
        ) -> tuple[Tensor | None, ...]:
            return new(*_forward_operands(x, m, adaptation, w, options, call, in_place, over))

        count = 3 + (not over) + 2 * (not in_place)
        return Operator(
            name,
            compute,
            fake,
            types={"options": self._options, "return": GenericAlias(tuple, (Tensor,) * count)},
            mutates=("m", "adaptation") if in_place else (),
            overwrites=("x",) if over else (),
            keep=self._keep_online if in_place else self._keep,
            backward=self._go_back_online if in_place else self._go_back,
        )

    def _backward(
        self, m: Tensor, adaptation: Tensor | None, m_kept: Tensor | None, adaptation_kept: Tensor | None,
        m_first: Tensor | None, adaptation_first: Tensor | None, grad_spikes: Tensor | None, grad_m: Tensor | None,
        grad_adaptation: Tensor | None, w: Tensor | None, options: Options, wanted: Wanted,
    ) -> Gradients:  # fmt: skip
        gradients = self._empty_gradients(
            m, adaptation, m_kept, adaptation_kept, m_first, adaptation_first, grad_spikes, grad_m, grad_adaptation, w,
            options, wanted,
        )  # fmt: skip
        grad_x, grad_m_first, grad_adaptation_first, grad_w = gradients
        if not m.numel():
            return grad_x, grad_m_first, grad_adaptation_first, None if grad_w is None else grad_w.zero_()
        alike = functools.partial(like_if_there, pattern=m)
        operands = Backward(
            _steps(m_kept),
            m,
            grad_x,
            like_if_there(grad_spikes, grad_x),
            alike(grad_m),
            m_kept,
            alike(m_first),
            grad_m_first,
            alike(adaptation),
            alike(grad_adaptation),
            adaptation_kept,
            alike(adaptation_first),
            grad_adaptation_first,
            None if w is None else torch.sigmoid(w),
            grad_w,
            wanted.online,
        )
        dispatch.kernels(self._package, options.backend, m.device).backward(operands, options)
        return gradients

    @staticmethod
    def _empty_gradients(m: Tensor, adaptation: Tensor | None, m_kept: Tensor | None, *rest: Any) -> Gradients:
        *_, w, _, wanted = rest
        grad_x = empty_steps(m, _steps(m_kept), wanted.dtype) if wanted.sequence else empty_like(m, wanted.dtype)
        grad_m_first = empty_like(m, m.dtype) if wanted.wants_past else None
        grad_adaptation_first = empty_like(m, m.dtype) if wanted.wants_past and adaptation is not None else None
        return grad_x, grad_m_first, grad_adaptation_first, torch.empty_like(w) if wanted.wants_w else None

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        x, m_first, adaptation_first, w, options, call = inputs
        _, m, adaptation, m_kept, adaptation_kept, bits = output
        _, wants_m, wants_adaptation, wants_w = ctx.needs_input_grad[:4]
        past = not call.online and (wants_m or wants_adaptation)
        ctx.options, ctx.call, ctx.dtype, ctx.past, ctx.ndim = options, call, x.dtype, past, x.ndim
        constants = [m_kept, adaptation_kept, bits]
        if call.online:
            constants += [m, adaptation]
        if adaptation_first is None or not options.advance:
            constants.append(adaptation)
            adaptation = adaptation_first
        # The new states are also the next step's past: over T steps they are kept once each.
        first = (m_first, adaptation_first) if wants_w or (past and options.reads_past) else (None, None)
        ctx.save_for_backward(m, adaptation, if_any(m_kept), if_any(adaptation_kept), *first, w)
        ctx.mark_non_differentiable(*(t for t in constants if t is not None))
        ctx.set_materialize_grads(False)

    def _go_back(
        self, ctx: Any, grad_spikes: Tensor | None, grad_m: Tensor | None, grad_adaptation: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        if not ctx.options.advance:
            grad_adaptation = None
        reaches_past = ctx.past or ctx.call.sequence  # of a sequence the past is also its steps before
        if grad_spikes is None and grad_m is None and (grad_adaptation is None or not reaches_past):
            return (None,) * 6
        *states, w = saved_tensors(ctx, f"the fused {self.name.upper()} neuron")
        upstream = _grad_by_step(ctx, grad_spikes, states[0]), grad_m, grad_adaptation
        grad_x, *others = self.backward(*states, *upstream, w, ctx.options, _wanted(ctx))
        gradients, needed = (_as_given(ctx, grad_x), *others), ctx.needs_input_grad[:4]
        return *(g if is_needed else None for g, is_needed in zip(gradients, needed, strict=True)), None, None

    def _keep_online(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        x, m, adaptation, w, options, call = inputs
        *_, m_kept, adaptation_kept, bits = output
        ctx.options, ctx.call, ctx.dtype, ctx.past, ctx.ndim = options, call, x.dtype, False, x.ndim
        # The states themselves, no copies, and their versions to tell if they were changed since.
        ctx.states = m, adaptation
        ctx.versions = versions(ctx.states)
        if call.keep or w is not None:
            ctx.save_for_backward(if_any(m_kept), if_any(adaptation_kept), w)
        ctx.mark_non_differentiable(*(t for t in (m_kept, adaptation_kept, bits) if t is not None))
        ctx.set_materialize_grads(False)

    def _go_back_online(self, ctx: Any, grad_spikes: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if versions(ctx.states) != ctx.versions:
            raise advanced_too_early(self.name)
        if grad_spikes is None:
            return (None,) * 6
        m, adaptation = ctx.states
        saved = saved_tensors(ctx, f"the fused {self.name.upper()} neuron")
        m_kept, adaptation_kept, w = saved or (None, None, None)
        m_first = None
        if ctx.call.keep_first:
            m_first, m_kept = m_kept[0], if_any(m_kept[1:])
        states = m, adaptation, m_kept, adaptation_kept, m_first, None
        upstream = _grad_by_step(ctx, grad_spikes, m), None, None
        grad_x, _, _, grad_w = self.backward(*states, *upstream, w, ctx.options, _wanted(ctx))
        return _as_given(ctx, grad_x), None, None, grad_w if ctx.needs_input_grad[3] else None, None, None


def _forward_operands(
    x: Tensor, m: Tensor, adaptation: Tensor | None, w: Tensor | None, options: Options, call: Call, in_place: bool,
    over: bool,
) -> tuple[Forward, Tensor]:  # fmt: skip
    """All operands in one memory order, results unwritten: the order of the states where those are written over, else
    that of the input. Also the spikes in the shape of the input."""
    if call.sequence:
        by_step = _by_step(x, m)
        laid_out = in_steps(by_step, m if in_place else None)
        steps, pattern = len(laid_out), m if in_place else laid_out[0]
        if over:
            given = x if laid_out is by_step else laid_out.view(x.shape)
        elif by_step is not x:
            given = empty_batch(pattern, steps, x.dtype)
        else:
            given = empty_steps(pattern, steps, x.dtype)
        x, spikes = laid_out, _by_step(given, m)
    else:
        steps, x = 1, like(x, m) if in_place else dense(x)
        pattern = m if in_place else x
        given = spikes = x if over else empty_like(pattern, x.dtype)
    kept = (steps - 1 if call.keep else 0) + call.keep_first
    new_m = m if in_place else empty_like(pattern, m.dtype)
    bits = torch.empty(packed_size(spikes.numel()), dtype=torch.uint8, device=x.device) if call.pack else None
    m_kept = empty_steps(pattern, kept, m.dtype) if kept else None
    decay = None if w is None else torch.sigmoid(w)
    if adaptation is None:
        return Forward(steps, x, like(m, pattern), new_m, spikes, bits, m_kept, None, None, None, decay), given
    new_adaptation = adaptation_kept = None
    if options.advance:
        new_adaptation = adaptation if in_place else empty_like(pattern, m.dtype)
        adaptation_kept = empty_steps(pattern, kept, m.dtype) if kept else None
    states = like(adaptation, pattern), new_adaptation, adaptation_kept
    return Forward(steps, x, like(m, pattern), new_m, spikes, bits, m_kept, *states, decay), given


def _by_step(x: Tensor, m: Tensor) -> Tensor:
    """A sequence as [T, ...], of time steps with the state m, also where they are one after the other in one batch."""
    is_flat = x.ndim == m.ndim > 0 and x.shape[1:] == m.shape[1:] and len(m) > 0 and len(x) % len(m) == 0
    return x.unflatten(0, (-1, len(m))) if is_flat else x


def _grad_by_step(ctx: Any, grad: Tensor | None, m: Tensor) -> Tensor | None:
    return grad if grad is None or not ctx.call.sequence else _by_step(grad, m)


def _as_given(ctx: Any, grad_x: Tensor) -> Tensor:
    """The gradient of the input in the input's shape."""
    return grad_x if grad_x.ndim == ctx.ndim else grad_x.flatten(0, 1)


def _without_first(operands: Forward) -> Forward:
    """The operands of a step over its state, whose old membrane is kept: the first of the maps, which is not the
    kernel's to write."""
    kept = operands.m_kept
    assert kept is not None  # there is a map for each membrane that is kept
    kept[0].copy_(operands.m)
    return operands._replace(m_kept=kept[1:] if len(kept) > 1 else None)


def _wanted(ctx: Any) -> Wanted:
    return Wanted(ctx.call.sequence, ctx.call.online, ctx.past, ctx.needs_input_grad[3], ctx.dtype)


def _steps(m_kept: Tensor | None) -> int:
    """How many steps those are of which all membranes but the last are kept."""
    return 1 if m_kept is None else len(m_kept) + 1


def follows(*tensors: Tensor | None) -> bool:
    """Whether a gradient of what is computed from these would reach any of them."""
    return transformed() or (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors))


def _attach(spikes: Tensor, bits: Tensor | None) -> None:
    """Let the spikes carry their bits: those that a kernel wrote, or made here where a byte holds bits of two steps."""
    if not (transformed() or torch.compiler.is_compiling()):
        attach(spikes, pack_bits(spikes.detach()) if bits is None else bits)


def advanced_too_early(name: str) -> RuntimeError:
    """The error of a backward that comes after its step's state has gone on."""
    return RuntimeError(
        f"the state of an online {name.upper()} step was advanced or changed before that step's backward: call "
        f"backward() after every time step, or use online=False ({name}_step) to go back through several."
    )


def versions(states: tuple[Tensor, Tensor | None]) -> tuple[int, int]:
    """How often each state was changed."""
    m, adaptation = states
    return m._version, 0 if adaptation is None else adaptation._version


def if_any(t: Tensor | None) -> Tensor | None:
    """A result that is there; the dispatcher gives an empty tensor for what is not."""
    return t if t is not None and len(t) else None


def like_if_there(t: Tensor | None, pattern: Tensor) -> Tensor | None:
    """A tensor, if there is one, in the memory order of `pattern`."""
    return None if t is None else like(t, pattern)
