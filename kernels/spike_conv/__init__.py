"""A convolution over spikes that reads their bits: see README.md."""

from .input_gradient import by_columns, is_weight_bound
from .ops import spike_conv, spike_conv_weight_gradient, takes

__all__ = ["by_columns", "is_weight_bound", "spike_conv", "spike_conv_weight_gradient", "takes"]
