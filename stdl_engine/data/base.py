"""A dataset: two sources of labelled samples, in memory or read file by file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from ..extras import MissingExtra
from .archives import reason_of
from .prepare import Preparation

Read = TypeVar("Read")
Where = TypeVar("Where", Path, str)

IN_MEMORY = 2 * 10**9
"""Sources below this many bytes are held in memory."""

ON_BAD_SAMPLE = ("stop", "skip")


class BadSampleError(ValueError):
    """A file of a dataset that cannot be read, or a named item of a user's own dataset, and why."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the sample {printable(self.path)} cannot be read ({self.reason}): replace the file, or leave such files "
            'out with on_bad_sample="skip".'
        )


@dataclass(frozen=True, kw_only=True)
class MemorySource:
    """Samples in one tensor, prepared one whole batch at a time."""

    samples: Tensor
    """[N, C, H, W], or [N, T, C, H, W] for events; bytes, other whole numbers or floats."""
    labels: Tensor
    """[N], int64."""
    prepare: Preparation
    rows: Tensor | None = None
    """The rows of `samples` that belong to this source, if it shares them with another; by default all, in order."""
    bad_samples: tuple[Path | str, ...] = ()
    """Files that were left out because they could not be read."""

    def __post_init__(self) -> None:
        samples, labels = self.samples, self.labels
        if not isinstance(samples, Tensor) or samples.ndim not in (4, 5):
            raise ValueError(f"the samples are {_told(samples)}: give a tensor [N, C, H, W] or [N, T, C, H, W].")
        if not isinstance(labels, Tensor) or labels.ndim != 1 or labels.dtype != torch.int64:
            raise ValueError(f"the labels are {_told(labels)}: give a tensor [N] of torch.int64.")
        if self.rows is None and len(samples) != len(labels):
            raise ValueError(f"there are {len(labels)} labels for {len(samples)} samples: give one for each.")

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The samples at `indices`, augmented if a generator is given."""
        rows = indices if self.rows is None else self.rows[indices]
        return self.prepare(self.samples[rows], generator), self.labels[indices]

    def only(self, indices: Tensor) -> MemorySource:
        """A source of these samples only; they are not copied."""
        rows = indices if self.rows is None else self.rows[indices]
        return replace(self, labels=self.labels[indices], rows=rows)


@runtime_checkable
class SampledSource(Protocol):
    """A dataclass of samples that are read one by one when a batch needs them."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def labels(self) -> Tensor:
        """[N], int64."""

    @property
    def prepare(self) -> Preparation: ...

    @property
    def on_bad_sample(self) -> str: ...

    @property
    def bad_samples(self) -> tuple[Path | str, ...]: ...

    def __len__(self) -> int: ...

    def sample(self, index: int, generator: torch.Generator | None) -> tuple[Tensor, int]:
        """One prepared sample and its label, augmented if there is a generator to do it with."""

    def only(self, indices: Tensor) -> Self:
        """The source of these samples alone."""


Source = MemorySource | SampledSource
"""A training or test set: labelled samples that `Batches` makes batches of."""


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Samples read one by one when a batch needs them, by worker processes if there are any.

    With on_bad_sample="skip", a file that cannot be read is replaced by another sample in training, so that batches
    keep their size, and left out in testing, so that no sample counts twice. Either way `Batches.bad_samples` names it.
    """

    files: Sequence[tuple[Path, int]]
    """Path and label of each sample."""
    read: Callable[[Path], Tensor]
    """Reads one file as [C, H, W], or [T, C, H, W] for events. Any exception from it marks the sample as bad."""
    prepare: Preparation
    on_bad_sample: str = "stop"
    bad_samples: tuple[Path | str, ...] = ()
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
        """What `read` returns; any failure is raised as a `BadSampleError`."""
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
    train: Source
    test: Source

    def __post_init__(self) -> None:
        if not _whole(self.num_classes) or self.num_classes < 2:
            raise ValueError(f"{self.name} has {self.num_classes!r} classes: a network needs two or more.")
        if len(tuple(self.in_shape)) != 3 or not all(_whole(side) and side > 0 for side in self.in_shape):
            raise ValueError(f"{self.name} has the in_shape {self.in_shape!r}: give channels, height and width.")
        for split, source in (("training", self.train), ("test", self.test)):
            if not isinstance(source, Source):
                raise ValueError(
                    f"the {split} set of {self.name} is a {type(source).__name__}: give a MemorySource or a FileSource."
                )
            if len(source) == 0:
                raise ValueError(f"the {split} set of {self.name} is empty: it needs at least one readable sample.")
            labels = source.labels
            if labels.min() < 0 or labels.max() >= self.num_classes:
                raise ValueError(
                    f"the {split} set of {self.name} has labels from {labels.min()} to {labels.max()}, and there are "
                    f"{self.num_classes} classes: number them from 0 to {self.num_classes - 1}."
                )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _told(value: object) -> str:
    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def printable(path: Path | str) -> str:
    """A path as printable text: the name of a file may hold any bytes, but a message must be text."""
    return os.fsencode(path).decode(errors="backslashreplace")


def read_checked(read: Callable[[Where], Read], path: Where) -> Read:
    """What `read` returns for a file, or for an item by its name; any failure is raised as a `BadSampleError`."""
    try:
        return read(path)
    except (MemoryError, MissingExtra):
        raise  # not the file's fault
    except Exception as error:  # decoders raise all kinds of errors for a broken file
        raise BadSampleError(path, reason_of(error)) from error


def check_on_bad_sample(choice: str) -> None:
    if choice not in ON_BAD_SAMPLE:
        raise ValueError(f'on_bad_sample is {choice!r}: choose "stop" or "skip".')
