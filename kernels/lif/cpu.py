"""The LIF equations for the loops of `cpu_loop`; PLIF's too, which are LIF's with a decay that is learned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from .. import cpu_loop
from ..cpu_loop import Numbers, surrogate_for
from ..cpu_math import element
from ..cpu_threads import CHUNK, inlined
from ..operands import Backward, Forward

if TYPE_CHECKING:
    from .ops import Options


def forward(operands: Forward, options: Options) -> None:
    """m[t] = decay · reset(m[t-1]) + scale · x[t];  spikes[t] = m[t] >= threshold."""
    cpu_loop.forward(operands, integrate_for(options.reset), numbers_for(options, operands.decay))


def backward(operands: Backward, options: Options) -> None:
    """g = grad_m + grad_spikes[t] · surrogate(m[t] - threshold);  grad_x[t] = scale · g;
    grad_m = decay · g · reset'(m[t-1]), which the previous step continues with.

    A learned decay: grad_w = decay · (1 - decay) · Σ g · u, or decay · Σ g · (u - m) where it scales the input, too,
    with u = reset(m[t-1]).
    """
    partial = None if operands.grad_w is None else operands.m.new_empty(-(-operands.m.numel() // CHUNK))
    reset, detach = options.reset, options.detach_reset
    if operands.grad_m_first is None and (operands.online or operands.steps == 1):
        detach = True  # no gradient passes through the reset: one kernel for all of these
        reset = "none" if partial is None else reset
    arithmetic = element(operands.grad_x.dtype).arithmetic
    fires, scales = operands.grad_spikes is not None, options.scale_by_decay and partial is not None
    go_back = go_back_for(reset, detach, options.form, fires, scales, arithmetic)
    cpu_loop.backward(operands, go_back, numbers_for(options, operands.decay), partial)
    if partial is not None:
        add_up_decay(partial.numpy(), operands.decay, operands.grad_w, options)


def add_up_decay(
    partial: np.ndarray, decay: torch.Tensor | None, grad_w: torch.Tensor | None, options: Options
) -> None:
    """The gradient of the decay's logit from the sums of all chunks."""
    assert decay is not None
    assert grad_w is not None
    # numpy adds in one thread; torch would share a long sum out.
    total, learned = partial.sum(dtype=np.float64), decay.double()
    grad_w.copy_((learned if options.scale_by_decay else learned * (1 - learned)) * total)


def numbers_for(options: Options, decay: torch.Tensor | None) -> Numbers:
    """The numbers of the equations, with a learned decay in place of the options'."""
    number, scale = options.decay, options.scale
    if decay is not None:
        number = decay.item()
        scale = (scale * (1 - decay)).item() if options.scale_by_decay else scale
    return Numbers(number, options.threshold, scale, options.reset_value, 0.0, 0.0, 0.0, options.a, options.b)


@functools.cache
def reset_for(reset: str) -> Callable:
    """u = reset(m)."""
    soft, hard = reset == "soft", reset == "hard"

    def after_reset(m, numbers):
        u = m
        if soft:
            u = m - numbers.threshold if m >= numbers.threshold else m
        if hard:
            u = numbers.reset_value if m >= numbers.threshold else m
        return u

    return inlined(after_reset)


@functools.cache
def integrate_for(reset: str) -> Callable:
    """m = decay · reset(m') + current, and the threshold at which it fires."""
    after_reset = reset_for(reset)

    def integrate(m, adaptation, current, numbers):
        return numbers.decay * after_reset(m, numbers) + current, adaptation, numbers.threshold

    return inlined(integrate)


@functools.cache
def reset_gradient_for(reset: str, detach_reset: bool, form: str, arithmetic: type) -> Callable:
    """The gradient of m from `grad`, that of u = reset(m)."""
    attached_soft, hard = reset == "soft" and not detach_reset, reset == "hard"
    attached_hard = hard and not detach_reset
    surrogate = surrogate_for(form)
    zero, infinity = arithmetic(0), arithmetic(np.inf)

    def through_reset(grad, m, numbers):
        past = grad
        if attached_soft:
            slope = arithmetic(surrogate(m - numbers.threshold, numbers.a, numbers.b))
            past = grad - (grad * numbers.threshold) * slope
        if hard:
            past = zero if m >= numbers.threshold else grad
        if attached_hard:
            slope = arithmetic(surrogate(m - numbers.threshold, numbers.a, numbers.b))
            jump = numbers.reset_value - m if abs(m) < infinity else zero
            past = past + (grad * jump) * slope
        return past

    return inlined(through_reset)


@functools.cache
def go_back_for(
    reset: str, detach_reset: bool, form: str, has_grad_spikes: bool, scale_by_decay: bool, arithmetic: type
) -> Callable:
    """The gradients of the membrane and of the one before, and what this neuron adds to that of the decay."""
    surrogate, after_reset = surrogate_for(form), reset_for(reset)
    through_reset = reset_gradient_for(reset, detach_reset, form, arithmetic)

    def go_back(m, adaptation, past, past_adaptation, grad_spikes, grad_m, grad_adaptation, numbers):
        g = grad_m
        if has_grad_spikes:
            g = grad_m + grad_spikes * arithmetic(surrogate(m - numbers.threshold, numbers.a, numbers.b))
        u = after_reset(past, numbers)
        product = g * (u - m) if scale_by_decay else g * u
        return g, through_reset(numbers.decay * g, past, numbers), grad_adaptation, product

    return inlined(go_back)
