"""Gradients of ranks that share a batch: one flat sum per subnetwork, on its way while the next subnetwork runs."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..planning.subnetworks import Subnetwork
from ..rules import Rule
from .faults import exchanging
from .peers import Peers, Pending


class SharedGradients:
    """The `exchange` of a rule whose batches are spread over ranks. Every optimizer steps with the mean of the ranks'
    gradients, which is the gradient of the whole batch if all have equally many samples."""

    def __init__(self, rule: Rule, peers: Peers) -> None:
        self.rule, self.peers = rule, peers
        self.bytes = 0
        """Bytes of all gradients of this rank that were summed."""
        self._on_its_way: tuple[Subnetwork, Tensor, Pending] | None = None

    def begin(self, subnetwork: Subnetwork) -> None:
        flat = torch.cat([gradient.detach().flatten() for gradient in _gradients(subnetwork)])
        pending = self.peers.begin_sum(flat)
        self.bytes += flat.numel() * flat.itemsize
        self.end()
        self._on_its_way = subnetwork, flat, pending

    def end(self) -> None:
        if self._on_its_way is None:
            return
        subnetwork, flat, pending = self._on_its_way
        self._on_its_way = None
        with exchanging():
            pending.wait()
        flat /= self.peers.count
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
