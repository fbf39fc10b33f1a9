"""The ALIF equations for the loops of `cpu_loop`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import cpu_loop
from ..cpu_loop import Numbers, surrogate_for
from ..cpu_math import element
from ..cpu_threads import inlined
from ..operands import Backward, Forward

if TYPE_CHECKING:
    from .ops import Options


def forward(operands: Forward, options: Options) -> None:
    """s' = m' >= level(b');  u = m' - level(b') · s';  b = rho · b' + gain · s';
    m = decay · u + scale · x;  spikes = m >= level(b);  level(b) = threshold + beta · b, b the adaptation.

    Without `advance` u is m', b is b' and is not written.
    """
    arithmetic = element(operands.x.dtype).arithmetic
    cpu_loop.forward(operands, integrate_for(options.advance, arithmetic), _numbers(options))


def backward(operands: Backward, options: Options) -> None:
    """f = grad_spikes · surrogate(m - level(b));  g = grad_m + f;  k = grad_b - beta · f;  grad_x = scale · g;
    e = gain · k - decay · g · level(b'), times surrogate(m' - level(b'));
    grad_m' = decay · g + e;  grad_b' = rho · k - beta · (decay · g · s' + e)."""
    detach_reset, advance = options.detach_reset, options.advance
    if not advance or (operands.grad_m_first is None and (operands.online or operands.steps == 1)):
        detach_reset, advance = True, False  # no gradient flows through the reset: one kernel for all of these
    arithmetic = element(operands.grad_x.dtype).arithmetic
    go_back = go_back_for(detach_reset, advance, options.form, operands.grad_spikes is not None, arithmetic)
    cpu_loop.backward(operands, go_back, _numbers(options))


def _numbers(options: Options) -> Numbers:
    adapts = {"beta": options.beta, "rho": options.rho, "gain": 1 - options.rho}
    return Numbers(options.decay, options.threshold, options.scale, a=options.a, b=options.b, **adapts)


@functools.cache
def integrate_for(advance: bool, arithmetic: type) -> Callable:
    """The new membrane, the new adaptation, and the level at which the neuron fires."""
    zero = arithmetic(0)

    def integrate(m, adaptation, current, numbers):
        u = m
        if advance:
            level = numbers.threshold + numbers.beta * adaptation
            adaptation = numbers.rho * adaptation + (numbers.gain if m >= level else zero)
            u = m - level if m >= level else m
        return numbers.decay * u + current, adaptation, numbers.threshold + numbers.beta * adaptation

    return inlined(integrate)


@functools.cache
def go_back_for(detach_reset: bool, advance: bool, form: str, has_grad_spikes: bool, arithmetic: type) -> Callable:
    """The gradients of the membrane, and of the previous membrane and adaptation."""
    surrogate, zero = surrogate_for(form), arithmetic(0)

    def go_back(m, adaptation, past, past_adaptation, grad_spikes, grad_m, grad_adaptation, numbers):
        g, k = grad_m, grad_adaptation
        if has_grad_spikes:
            level = numbers.threshold + numbers.beta * adaptation
            f = grad_spikes * arithmetic(surrogate(m - level, numbers.a, numbers.b))
            g = grad_m + f
            k = grad_adaptation - numbers.beta * f
        u = numbers.decay * g
        if advance:
            level = numbers.threshold + numbers.beta * past_adaptation
            e = numbers.gain * k
            if not detach_reset:
                e = e - u * level
            e = e * arithmetic(surrogate(past - level, numbers.a, numbers.b))
            grad_level = -e
            if not detach_reset:
                grad_level = (-u if past >= level else zero) - e
            u = u + e
            k = numbers.rho * k + numbers.beta * grad_level
        return g, u, k, zero

    return inlined(go_back)
