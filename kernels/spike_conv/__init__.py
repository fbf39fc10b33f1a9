"""A convolution over spikes that reads their bits: see README.md."""

from .input_gradient import by_taps, is_weight_bound
from .ops import spike_conv, spike_conv_add_weight_gradient, spike_conv_weight_gradient, takes

__all__ = [
    "by_taps",
    "is_weight_bound",
    "spike_conv",
    "spike_conv_add_weight_gradient",
    "spike_conv_weight_gradient",
    "takes",
]
