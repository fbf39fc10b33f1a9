"""The operands of the kernels of batch norm and the neuron after it, the same for every backend.

Maps hold `steps` time steps of one batch, one after the other, and are dense; channels are innermost in memory, or each
channel of a sample is one run. Statistics are those of `groups` parts of a map: of each time step, or of all together.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

GAIN, OFFSET, MEAN, INVERSE = range(4)
"""The rows of a table: batch norm is x · gain + offset, where gain = weight · inverse, offset = bias - mean · gain and
inverse = 1 / √(variance + eps)."""


class Shape(NamedTuple):
    """How a map is to be read."""

    steps: int
    groups: int
    channels: int
    neurons: int
    """Of one time step."""
    run: int
    """Adjacent elements of one channel: 1 if channels are innermost."""

    @property
    def samples(self) -> int:
        """How many elements of a channel the statistics of a group are made of."""
        return self.steps * self.neurons // (self.channels * self.groups)


class Fire(NamedTuple):
    """The operands of the time steps of a neuron whose input is batch norm's output, perhaps with something added."""

    shape: Shape
    x: Tensor
    """Batch norm's input."""
    table: Tensor
    """[groups, 4, channels]."""
    m_first: Tensor
    """Membrane before the first step."""
    m: Tensor
    """Gets the membrane of the last step; may be `m_first` itself."""
    bits: Tensor
    """Gets the spikes as bits."""
    spikes: Tensor | None = None
    """Gets the spikes."""
    m_kept: Tensor | None = None
    """Gets the membranes of all steps but the last."""
    added: Tensor | None = None
    """A map to be added to batch norm's output."""
    added_bits: Tensor | None = None
    """Spikes to be added, as bits."""
    decay: Tensor | None = None
    """A learned decay, one number."""


class GoBack(NamedTuple):
    """The operands of the same steps backward, down to batch norm's output, and the sums that batch norm needs."""

    shape: Shape
    x: Tensor
    table: Tensor
    m: Tensor
    """Membrane of the last step."""
    grad: Tensor
    """Gets the gradient of batch norm's output."""
    sums: Tensor
    """Gets Σ g and Σ g · (x - mean) of each group and channel, [groups, 2, channels]."""
    grad_spikes: Tensor | None = None
    grad_m: Tensor | None = None
    """Gradient of the last membrane."""
    m_kept: Tensor | None = None
    m_first: Tensor | None = None
    """Membrane before the first step, if its value or its gradient is needed."""
    grad_m_first: Tensor | None = None
    """Gets its gradient."""
    decay: Tensor | None = None
    grad_w: Tensor | None = None
    """Gets the gradient of the decay's logit."""
    online: bool = False
