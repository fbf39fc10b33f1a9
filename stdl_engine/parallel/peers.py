"""The ranks that share a batch, as a training step sees them: others to sum with and to gather from.

A training step that is measured on fake tensors has peers that are absent: it makes the same tensors, and nothing is
exchanged.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from .faults import exchanging


class Pending(Protocol):
    """An exchange that was begun."""

    def wait(self) -> object:
        """Returns when it has ended."""


class Peers(Protocol):
    """So many ranks, this one among them."""

    count: int

    def begin_sum(self, values: Tensor) -> Pending:
        """Begin to replace values by their sum over all ranks."""

    def gathered(self, values: Tensor) -> list[Tensor]:
        """The values of every rank, in order."""


class GroupPeers:
    """The ranks of a group of torch.distributed."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.count = group, dist.get_world_size(group)

    def begin_sum(self, values: Tensor) -> Pending:
        with exchanging():
            return dist.all_reduce(values, group=self.group, async_op=True)

    def gathered(self, values: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(values) for _ in range(self.count)]
        with exchanging():
            dist.all_gather(parts, values, group=self.group)
        return parts


class AbsentPeers:
    """Ranks that are not there: every tensor of an exchange is made, and holds no numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def begin_sum(self, values: Tensor) -> Pending:
        return _Nothing()

    def gathered(self, values: Tensor) -> list[Tensor]:
        return [torch.empty_like(values) for _ in range(self.count)]


class _Nothing:
    def wait(self) -> None:
        pass
