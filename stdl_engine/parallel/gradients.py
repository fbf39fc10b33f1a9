"""Gradients of ranks that share a batch: one flat sum per subnetwork, on its way while the next subnetwork runs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..planning.subnetworks import Subnetwork
from ..rules import Rule
from .faults import exchanging


class SharedGradients:
    """The `exchange` of a rule whose batches are spread over the ranks of a group. Every optimizer steps with the mean
    of the ranks' gradients, which is the gradient of the whole batch if all have equally many samples."""

    def __init__(self, rule: Rule, group: dist.ProcessGroup) -> None:
        self.rule, self.group, self.ranks = rule, group, dist.get_world_size(group)
        self.bytes = 0
        """Bytes of all gradients of this rank that were summed."""
        self._on_its_way: tuple[Subnetwork, Tensor, dist.Work] | None = None

    def begin(self, subnetwork: Subnetwork) -> None:
        flat = torch.cat([gradient.detach().flatten() for gradient in _gradients(subnetwork)])
        with exchanging():
            work = dist.all_reduce(flat, group=self.group, async_op=True)
        self.bytes += flat.numel() * flat.itemsize
        self.end()
        self._on_its_way = subnetwork, flat, work

    def end(self) -> None:
        if self._on_its_way is None:
            return
        subnetwork, flat, work = self._on_its_way
        self._on_its_way = None
        with exchanging():
            work.wait()
        flat /= self.ranks
        gradients = _gradients(subnetwork)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view(gradient.shape))
        self.rule.update(subnetwork)

    def forget(self) -> None:
        self._on_its_way = None


def _gradients(subnetwork: Subnetwork) -> list[Tensor]:
    return [p.grad for p in subnetwork.parameters() if p.grad is not None]


def make_equal(module: nn.Module, group: dist.ProcessGroup, source: int) -> None:
    """Give a module the parameters and buffers that it has on one rank of a group."""
    for tensor in (*module.parameters(), *module.buffers()):
        values = tensor.detach().contiguous()
        with exchanging():
            dist.broadcast(values, source, group=group)
        tensor.detach().copy_(values)
