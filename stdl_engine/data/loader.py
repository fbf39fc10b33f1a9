"""Batches of a source, epoch by epoch; the same seed and epoch always give the same batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from .base import BadSampleError, MemorySource, SampledSource, Source


class Batches:
    """Batches of a source.

    In training samples are shuffled and augmented, and every batch is full (a short last one is dropped). Otherwise
    they come in order and unchanged, and the last batch may be short. What `epoch(n)` yields depends only on the seed
    and n: not on the number of workers, on other random numbers that were drawn, or on earlier epochs. It draws nothing
    from torch's global generator.

    Example:
        >>> from stdl_engine.data import load_dataset
        >>> batches = Batches(load_dataset("digits").train, batch_size=128, seed=0, training=True)
        >>> len(batches), [x.shape for x, y in batches.epoch(0)][0]
        (11, torch.Size([128, 1, 16, 16]))
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        seed: int = 0,
        training: bool,
        workers: int = 0,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        """`workers` are processes that read and prepare the files of a FileSource; a source in memory needs none.

        With several `shards` this is one of them: in training it has an equal part of each batch, otherwise every n-th
        batch of n shards. Together the shards are all batches.
        """
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("workers", workers, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} is {value!r}: it must be a whole number from {least} up.")
        if training and batch_size > len(source):
            raise ValueError(
                f"batch_size is {batch_size} and the training set has {len(source)} samples: make it {len(source)} or "
                "less."
            )
        if training and batch_size % shards:
            raise ValueError(
                f"batch_size is {batch_size} and has to be split over {shards} ranks: make it a multiple of {shards}."
            )
        self.source = source
        self.shard, self.shards = shard, shards
        self.batch_size = batch_size
        self.seed = seed
        self.training = training
        self.workers = workers
        self.bad_samples: list[Path | str] = list(source.bad_samples)

    def __len__(self) -> int:
        """The number of batches in an epoch, over all shards."""
        if self.training:
            return len(self.source) // self.batch_size
        return math.ceil(len(self.source) / self.batch_size)

    @property
    def numbers(self) -> range:
        """The batches of an epoch of which this shard has all or a part."""
        return range(len(self)) if self.training else range(self.shard, len(self), self.shards)

    def epoch(self, number: int, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch: x in float32, [B, C, H, W] (channels_last) or [T, B, C, H, W] for events, and y in
        int64, [B]. With `skip` that many first batches are left out, and the others are the same as without it.
        """
        for name, value in (("epoch", number), ("number of batches to skip", skip)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"the {name} is {value!r}: it must be a whole number from 0 up.")
        if self.training:
            order = torch.randperm(len(self.source), generator=generator_for(self.seed, number))
            order = order[: len(self) * self.batch_size]
        else:
            order = torch.arange(len(self.source))
        order = order[skip * self.batch_size :]
        if len(order) == 0:
            return iter(())
        if isinstance(self.source, MemorySource):
            return self._from_memory(self.source, order, number, skip)
        return self._from_files(self.source, self._own(order, skip), number)

    def _own(self, order: Tensor, first: int) -> Tensor:
        """The samples of an order that this shard reads."""
        batches = enumerate(order.split(self.batch_size), first)
        own = [batch[self._part(len(batch))] for place, batch in batches if place in self.numbers]
        return torch.cat(own) if own else order[:0]

    def _from_memory(
        self, source: MemorySource, order: Tensor, epoch: int, first: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for place, indices in enumerate(order.split(self.batch_size), first):
            if place not in self.numbers:
                continue
            generator = generator_for(self.seed, epoch, place) if self.training else None
            x, y = source.batch(indices, generator)  # the whole batch: augmentation draws for all of it
            yield _time_first(x[self._part(len(x))]), y[self._part(len(y))]

    def _part(self, count: int) -> slice:
        """The samples of a batch of this size that this shard has."""
        if not self.training:
            return slice(count)
        return slice(self.shard * count // self.shards, (self.shard + 1) * count // self.shards)

    def _from_files(self, source: SampledSource, order: Tensor, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        batch_size = self.batch_size // self.shards if self.training else self.batch_size
        loader = DataLoader(
            _Samples(source, self.seed, epoch, self.training),
            batch_size=batch_size,
            sampler=order.tolist(),
            num_workers=self.workers,
            collate_fn=_collate,
            generator=generator_for(self.seed, epoch),  # else the loader draws a number from the global one
        )
        for x, y, bad in loader:
            for error in bad:
                if source.on_bad_sample == "stop":
                    raise error
                if error.path not in self.bad_samples:
                    self.bad_samples.append(error.path)
            if self.training and (x is None or len(x) < batch_size):  # no other sample could take its place
                raise ValueError(f"none of the {len(source)} training samples can be read: replace their files.")
            if x is not None:
                yield _time_first(x), y


def generator_for(*numbers: int) -> torch.Generator:
    """A generator whose numbers depend on these values and nothing else."""
    (state,) = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


@dataclass(frozen=True)
class _Samples(TorchDataset):
    """One epoch of such a source, by index: the sample or None, its label, and the bad files found before it.

    Errors are returned as values: one raised in a worker process would reach the user inside a page of traceback.
    """

    source: SampledSource
    seed: int
    epoch: int
    training: bool

    def __getitem__(self, index: int) -> tuple[Tensor | None, int, list[BadSampleError]]:
        generator = generator_for(self.seed, self.epoch, index) if self.training else None
        bad: list[BadSampleError] = []
        for candidate in self._candidates(index, generator):
            try:
                return *self.source.sample(candidate, generator), bad
            except BadSampleError as error:
                bad.append(BadSampleError(error.path, error.reason))  # without its cause, which may not pickle
        return None, -1, bad

    def _candidates(self, index: int, generator: torch.Generator | None) -> Iterator[int]:
        yield index
        if self.training and self.source.on_bad_sample == "skip":
            yield from torch.randperm(len(self.source), generator=generator).tolist()


def _collate(
    samples: list[tuple[Tensor | None, int, list[BadSampleError]]],
) -> tuple[Tensor | None, Tensor | None, list[BadSampleError]]:
    bad = [error for _, _, errors in samples for error in errors]
    good = [(x, y) for x, y, _ in samples if x is not None]
    if not good:
        return None, None, bad
    x = torch.stack([x for x, _ in good])
    if x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return x, torch.tensor([y for _, y in good]), bad


def _time_first(x: Tensor) -> Tensor:
    """[B, T, C, H, W] as [T, B, C, H, W]; images stay as they are."""
    return x.transpose(0, 1).contiguous() if x.ndim == 5 else x
