"""Spikes as bits: bit i of byte j is the spike at place 8j + i of the tensor's memory, as by
`numpy.packbits(..., bitorder="little")`. How a tensor's bits are found is in `kernels.small_form`.
"""

from .ops import add_bits_, packed_size, planes_of, unpack

__all__ = ["add_bits_", "packed_size", "planes_of", "unpack"]
