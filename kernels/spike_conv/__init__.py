"""A convolution over spikes that reads their bits: see README.md."""

from .input_gradient import input_gradient, takes_winograd
from .ops import (
    spike_conv,
    spike_conv_add_weight_gradient,
    spike_conv_weight_gradient,
    takes,
    taps_input_gradient,
    winograd_input_gradient,
)

__all__ = [
    "input_gradient",
    "spike_conv",
    "spike_conv_add_weight_gradient",
    "spike_conv_weight_gradient",
    "takes",
    "takes_winograd",
    "taps_input_gradient",
    "winograd_input_gradient",
]
