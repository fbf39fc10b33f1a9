"""The role of each process: ranks = data × stages.

Ranks that share a stage have the same subnetworks and different samples; ranks that share a number in `shard` form one
pipeline. Rank 0 has the last stage of the first pipeline: losses and logits end up there, so it can print and write for
all without anything being sent back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from .faults import Pulse, exchanging
from .links import Receiver, Sender, Transport

TIMEOUT = 300.0
"""Seconds after which a silent rank is considered lost."""
LINK_TIMEOUT = timedelta(days=7)
"""The timeout of the transfer itself; the ends of a link decide how long a message may take."""


class Ranks:
    """This process among all others. Every process makes one, with the same settings.

    Args:
        stages: how many ranks the subnetworks are spread over; must divide the number of processes.
        timeout: seconds after which a rank that does not answer is given up, and the others end.

    The processes are those of `torch.distributed` if it is initialised, otherwise those of torchrun, otherwise only
    this one. Those of torchrun get a GPU each, if there are GPUs: "cuda" is that GPU from here on.

    Attributes:
        rank, world: this process, and how many there are.
        stage, stages: which part of the network is here, from 0 for the one that reads the data.
        shard, shards: which part of each batch is learned from here.
    """

    def __init__(self, stages: int = 1, *, timeout: float = TIMEOUT) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout!r}: it must be a number of seconds above 0.")
        self._opened = False
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", 1)) > 1:
            use_own_gpu()
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
            self._opened = True
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        if not isinstance(stages, int) or isinstance(stages, bool) or stages < 1:
            raise ValueError(f"stages is {stages!r}: it must be a whole number from 1 up.")
        if self.world % stages:
            raise ValueError(
                f"{stages} stages were asked for, and there are {self.world} processes: start a multiple of {stages} "
                f"(torchrun --nproc-per-node {stages * max(1, round(self.world / stages))})."
            )
        self.timeout, self.stages, self.shards = timeout, stages, self.world // stages
        self.shard, place = divmod(self.rank, stages)
        self.stage = stages - 1 - place
        self.pulse = Pulse(_store(), self.rank, self.world) if self.world > 1 else None
        self._make_groups()

    def rank_of(self, stage: int, shard: int) -> int:
        """The rank that has this stage and this part of each batch."""
        return shard * self.stages + self.stages - 1 - stage

    def _make_groups(self) -> None:
        """Every rank makes every group, in the same order, as torch.distributed requires. For a group that this rank is
        not in, torch.distributed returns a number instead."""
        self.data_group: dist.ProcessGroup | None = None
        self.pipe_group: dist.ProcessGroup | None = None
        self.incoming: GroupTransport | None = None
        self.outgoing: GroupTransport | None = None
        patience = timedelta(seconds=self.timeout)
        for stage in range(self.stages if self.shards > 1 else 0):
            members = [self.rank_of(stage, shard) for shard in range(self.shards)]
            group = dist.new_group(members, timeout=patience)
            self.data_group = group if isinstance(group, dist.ProcessGroup) else self.data_group
        for shard in range(self.shards if self.stages > 1 else 0):
            members = [self.rank_of(stage, shard) for stage in range(self.stages)]
            group = dist.new_group(members, timeout=patience, backend="gloo")
            self.pipe_group = group if isinstance(group, dist.ProcessGroup) else self.pipe_group
            for stage in range(self.stages - 1):
                ends = [self.rank_of(stage, shard), self.rank_of(stage + 1, shard)]
                group = dist.new_group(ends, timeout=LINK_TIMEOUT, backend="gloo")
                if not isinstance(group, dist.ProcessGroup):
                    continue
                if self.rank == ends[0]:
                    self.outgoing = GroupTransport(group, ends[1])
                else:
                    self.incoming = GroupTransport(group, ends[0])

    @property
    def is_first(self) -> bool:
        """Whether this stage reads the data."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage has the network's own classifier, and so knows losses and logits."""
        return self.stage == self.stages - 1

    @property
    def speaks(self) -> bool:
        """Whether this rank prints and writes for all."""
        return self.rank == 0

    def explaining(self) -> contextlib.AbstractContextManager[None]:
        """Inside, an error between ranks becomes `RankLost`, which names the rank at fault."""
        return contextlib.nullcontext() if self.pulse is None else self.pulse.explaining()

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        """The same for calls of torch.distributed itself."""
        with self.explaining(), exchanging():
            yield

    def sender(self, ahead: int) -> Sender | None:
        """The link to the next stage, if there is one."""
        return None if self.outgoing is None else Sender(self.outgoing, ahead=ahead, timeout=self.timeout)

    def receiver(self) -> Receiver | None:
        """The link from the previous stage, if there is one."""
        return None if self.incoming is None else Receiver(self.incoming, timeout=self.timeout)

    def agreed(self, value: int) -> int:
        """The largest of the values that the ranks of this stage have."""
        if self.data_group is None:
            return value
        largest = torch.tensor([value])
        with self.exchanging():
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.data_group)
        return int(largest)

    def summed(self, values: Tensor) -> Tensor:
        """The sum over the ranks of this stage, on the CPU."""
        total = values.detach().cpu().clone()
        if self.data_group is not None:
            with self.exchanging():
                dist.all_reduce(total, group=self.data_group)
        return total

    def from_speaker(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.world == 1:
            return value
        values = [value]
        with self.exchanging():
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def gathered(self, value: Any) -> list[Any] | None:
        """On the last stage the values of all stages of this pipeline, in order; None on the others."""
        if self.pipe_group is None:
            return [value]
        last = self.rank_of(self.stages - 1, self.shard)
        values: list[Any] | None = [None] * self.stages if self.rank == last else None
        with self.exchanging():
            dist.gather_object(value, values, dst=last, group=self.pipe_group)
        return None if values is None else values[::-1]  # ranks count backwards through the stages

    def everyones(self, value: Any) -> list[Any] | None:
        """On rank 0 the values of all ranks, in order; None on the others."""
        if self.world == 1:
            return [value]
        values: list[Any] | None = [None] * self.world if self.speaks else None
        with self.exchanging():
            dist.gather_object(value, values, dst=0)
        return values

    def meet(self) -> None:
        """Wait until all ranks have reached this point."""
        if self.world > 1:
            with self.exchanging():
                dist.barrier()

    def ask_to_stop(self, number: int) -> None:
        """Tell the first stages that this rank was asked to stop, by a signal of this number."""
        if self.pulse is not None:
            self.pulse.store.set("stop", str(number))

    def asked_to_stop(self) -> int:
        """The number of a signal that another rank has reported, or 0."""
        if self.pulse is None or not self.pulse.store.check(["stop"]):
            return 0
        return int(self.pulse.store.get("stop"))

    def close(self) -> None:
        """Wait until the others have finished, and leave the process group if it was joined here."""
        self.meet()
        if self.pulse is not None:
            self.pulse.end()
        if self._opened:
            dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None:  # otherwise the others may not be there to wait for
            self.close()


class GroupTransport(Transport):
    """Bytes between the two ranks of a group."""

    def __init__(self, group: dist.ProcessGroup, peer: int) -> None:
        self.group, self.peer = group, peer

    def send(self, payload: Tensor) -> None:
        dist.send(payload, self.peer, group=self.group)

    def receive(self, payload: Tensor) -> None:
        dist.recv(payload, self.peer, group=self.group)


def use_own_gpu() -> None:
    """Have "cuda" mean another GPU in each process that torchrun has started on this machine. With more processes than
    GPUs they take turns, which stages can do; NCCL refuses ranks that share both a batch and a GPU."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def _store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()  # torch.distributed has no public name for it
