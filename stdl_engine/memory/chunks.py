"""The network's input in chunks: the samples of one time step after those of another, in one batch.

Layers that treat every sample by itself need not know. Neurons carry a state from step to step and are told how many
samples a step has (`Neuron.samples`); batch norm takes its statistics per time step (`memory.norms`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .spikes import Kept, Repeated


def in_chunks(frames: Sequence[Tensor], size: int) -> list[Kept]:
    """The network's input in chunks of so many time steps; the last one has what is left."""
    if size == 1:
        return list(frames)
    return [_chunk(frames[first : first + size]) for first in range(0, len(frames), size)]


def _chunk(frames: Sequence[Tensor]) -> Kept:
    if len(frames) == 1:
        return frames[0]
    if all(frame is frames[0] for frame in frames):
        return Repeated(frames[0], len(frames))
    return torch.cat(tuple(frames))
