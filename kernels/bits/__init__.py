"""Spikes as bits: bit i of byte j is the spike at place 8j + i of the tensor's memory, as by
`numpy.packbits(..., bitorder="little")`. `kernels.small_form` says how a tensor's bits are found.
"""

from .ops import add_bits_, packed_size, planes_of, unpack

__all__ = ["add_bits_", "packed_size", "planes_of", "unpack"]
