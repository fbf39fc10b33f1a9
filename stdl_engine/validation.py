"""A part of the training set kept apart, so that the best weights can be chosen without a look at the test set."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .data import Dataset, FileSource, MemorySource
from .data.loader import generator_for

Source = MemorySource | FileSource


@dataclass(frozen=True, kw_only=True)
class PartOfMemory(MemorySource):
    """Some samples of a source in memory, which is not copied."""

    chosen: Tensor
    """Their places in it."""

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        return super().batch(self.chosen[indices], generator)


def split_off(data: Dataset, share: float, seed: int) -> tuple[Source, Source]:
    """The training set without a share of each class, and that share; the same ones whenever the seed is."""
    source = data.train
    chosen = _share_of_each_class(_labels(source), share, seed)
    if not chosen.any():
        raise ValueError(
            f"validate is {share:g} and the training set of {data.name} has {len(source)} samples, of which that is "
            "none: make it larger."
        )
    return _part(source, ~chosen), _part(source, chosen)


def _share_of_each_class(labels: Tensor, share: float, seed: int) -> Tensor:
    """A mask of floor(share · N) samples, of each class as many as its size asks for."""
    shuffled = torch.randperm(len(labels), generator=generator_for(seed, len(labels)))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    counts = (torch.arange(len(labels) + 1, dtype=torch.float64) * share).floor()
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[by_class] = counts.diff() > 0  # every 1 / share-th sample along the classes
    return mask


def _labels(source: Source) -> Tensor:
    if isinstance(source, MemorySource):
        return source.labels
    return torch.tensor([label for _, label in source.files])


def _part(source: Source, mask: Tensor) -> Source:
    places = mask.nonzero()[:, 0]
    if isinstance(source, MemorySource):
        fields = {"samples": source.samples, "labels": source.labels, "prepare": source.prepare}
        return PartOfMemory(chosen=places, bad_samples=source.bad_samples, **fields)
    return replace(source, files=[source.files[place] for place in places.tolist()])
