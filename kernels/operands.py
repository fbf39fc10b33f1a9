"""The operands of a neuron's kernels, the same for every neuron and backend.

Tensors are dense and share one memory order (`steps.py` ensures it), so a kernel walks memory in order whatever the
shape. In a sequence, tensors with a time dimension hold their steps one after the other. An operand that a call does
not need is None, and is neither read nor written.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Forward(NamedTuple):
    """The operands of `steps` time steps forward, each from the states of the previous one."""

    steps: int
    x: Tensor
    """Input current, [steps, ...]."""
    m_first: Tensor
    """Membrane before the first step."""
    m: Tensor
    """Gets the membrane of the last step; may be `m_first` itself."""
    spikes: Tensor
    """Gets the spikes, [steps, ...]; may be `x` itself."""
    bits: Tensor | None = None
    """Gets the spikes as bits. With several steps only if each fills whole bytes."""
    m_kept: Tensor | None = None
    """Gets the membranes of all steps but the last, [steps - 1, ...]."""
    adaptation_first: Tensor | None = None
    adaptation: Tensor | None = None
    """The same for a second state; None if it is only read."""
    adaptation_kept: Tensor | None = None
    decay: Tensor | None = None
    """A learned decay: one number on the device, which replaces that of the options."""


class Backward(NamedTuple):
    """The operands of the same steps backward: g[t] is the gradient of the membrane of step t.

    Online the gradients of the states, in and out, are None; then no step's gradient reaches the previous step.
    """

    steps: int
    m: Tensor
    """Membrane of the last step."""
    grad_x: Tensor
    """Gets the gradient of the input, [steps, ...]."""
    grad_spikes: Tensor | None = None
    """Gradient of the spikes, [steps, ...]."""
    grad_m: Tensor | None = None
    """Gradient of the last membrane."""
    m_kept: Tensor | None = None
    """Membranes of all steps but the last."""
    m_first: Tensor | None = None
    """Membrane before the first step, if its value or its gradient is needed."""
    grad_m_first: Tensor | None = None
    """Gets its gradient."""
    adaptation: Tensor | None = None
    grad_adaptation: Tensor | None = None
    adaptation_kept: Tensor | None = None
    adaptation_first: Tensor | None = None
    grad_adaptation_first: Tensor | None = None
    """The same five for a second state."""
    decay: Tensor | None = None
    """A learned decay, one number."""
    grad_w: Tensor | None = None
    """Gets the gradient of the decay's logit."""
    online: bool = False
    """Whether each step takes the past as a constant."""
