"""What a dataset is: two sources of labelled samples, in memory or read file by file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from .prepare import Preparation

Read = TypeVar("Read")

IN_MEMORY = 2 * 10**9
"""Sources below this many bytes are held in memory."""

ON_BAD_SAMPLE = ("stop", "skip")


class BadSampleError(ValueError):
    """A file of a dataset that cannot be read, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the sample {self.path} cannot be read ({self.reason}): replace the file, or leave such files out with "
            'on_bad_sample="skip".'
        )


@dataclass(frozen=True, kw_only=True)
class MemorySource:
    """Samples in one tensor, prepared a whole batch at a time."""

    samples: Tensor
    """[N, C, H, W], or [N, T, C, H, W] for events; bytes, other whole numbers or floats."""
    labels: Tensor
    """[N], int64."""
    prepare: Preparation
    rows: Tensor | None = None
    """Where in `samples` these are, for a part that shares them with another; by default all of them, in order."""
    bad_samples: tuple[Path, ...] = ()
    """Files that were left out because they could not be read."""

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The samples at `indices`, augmented if there is a generator to do it with."""
        rows = indices if self.rows is None else self.rows[indices]
        return self.prepare(self.samples[rows], generator), self.labels[indices]

    def only(self, indices: Tensor) -> MemorySource:
        """The source of these samples alone, which stay where they are."""
        rows = indices if self.rows is None else self.rows[indices]
        return replace(self, labels=self.labels[indices], rows=rows)


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Samples read one by one when a batch asks for them, by worker processes if there are any.

    With on_bad_sample="skip", a file that cannot be read is replaced by another sample in training, so that batches
    keep their size, and left out otherwise, so that no sample is judged twice. Either way `Batches.bad_samples` names
    it.
    """

    files: Sequence[tuple[Path, int]]
    """Path and label of each sample."""
    read: Callable[[Path], Tensor]
    """Reads one file as [C, H, W], or [T, C, H, W] for events. Whatever it raises makes the sample a bad one."""
    prepare: Preparation
    on_bad_sample: str = "stop"
    bad_samples: tuple[Path, ...] = ()
    """Files known to be bad, already left out of `files`."""

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labels(self) -> Tensor:
        """[N], int64."""
        return torch.tensor([label for _, label in self.files], dtype=torch.int64)

    def only(self, indices: Tensor) -> FileSource:
        """The source of these samples alone."""
        return replace(self, files=[self.files[index] for index in indices.tolist()])

    def sample(self, index: int, generator: torch.Generator | None) -> tuple[Tensor, int]:
        """One prepared sample and its label, augmented if there is a generator to do it with."""
        path, label = self.files[index]
        return self.prepare(self.read_checked(path)[None], generator)[0], label

    def read_checked(self, path: Path) -> Tensor:
        """What `read` gives, every failure of it as a `BadSampleError`."""
        return read_checked(self.read, path)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset ready to train on: batches come from `Batches(data.train, ...)`."""

    name: str
    num_classes: int
    in_shape: tuple[int, int, int]
    """Channels, height and width of one sample, or of one frame of it."""
    events: bool = False
    """Whether a sample is a sequence of T frames of events, or one image shown T times."""
    train: MemorySource | FileSource
    test: MemorySource | FileSource

    def __post_init__(self) -> None:
        for split, source in (("training", self.train), ("test", self.test)):
            if len(source) == 0:
                raise ValueError(f"the {split} set of {self.name} is empty: it needs at least one readable sample.")


def read_checked(read: Callable[[Path], Read], path: Path) -> Read:
    """What `read` gives for the file, every failure of it as a `BadSampleError`."""
    try:
        return read(path)
    except MemoryError:
        raise  # says nothing about the file
    except Exception as error:  # decoders raise whatever they like at a broken file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadSampleError(path, reason) from error


def check_on_bad_sample(choice: str) -> None:
    if choice not in ON_BAD_SAMPLE:
        raise ValueError(f'on_bad_sample is {choice!r}: choose "stop" or "skip".')
