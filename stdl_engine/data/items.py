"""Datasets that others wrote: any object with a length that gives a sample and a label by index, as PyTorch's do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arrays import count_classes
from .base import BadSampleError, Dataset, read_checked
from .prepare import Preparation
from .progress import progress

LABELS = ("targets", "labels")
"""The attributes where torchvision's datasets keep all labels, so that samples need not be read for them."""


@dataclass(frozen=True, kw_only=True)
class ItemSource:
    """Samples of a dataset by index, read when a batch needs them, by worker processes if there are any.

    The dataset's own random transforms draw from generators that are seeded for each sample and restored afterwards, so
    an epoch depends only on its seed and number. These transforms apply to a validation part too.
    """

    items: Any
    """Has a length, and gives (sample, label) by index; a sample is [C, H, W], or [T, C, H, W] for events."""
    shape: tuple[int, ...]
    """Of every sample."""
    labels: Tensor
    """[N], int64."""
    name: str
    """What to call the dataset in an error."""
    rows: Tensor | None = None
    """Which items belong to this source, if it is a part of the dataset; by default all, in order."""
    prepare: Preparation = Preparation()  # noqa: RUF009, as it is frozen
    on_bad_sample: str = "stop"
    bad_samples: tuple[Path | str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def sample(self, index: int, generator: torch.Generator | None) -> tuple[Tensor, int]:
        """One sample and its label; if a generator is given, it seeds the dataset's own random transforms."""
        row = index if self.rows is None else int(self.rows[index])
        seed = row if generator is None else int(torch.randint(2**31, (), generator=generator))
        with _seeded(seed):
            x, label = read_checked(lambda name: read_item(self.items, row), f"{self.name}[{row}]")
        if tuple(x.shape) != self.shape:
            raise BadSampleError(f"{self.name}[{row}]", f"it has shape {tuple(x.shape)} and the first one {self.shape}")
        if label != self.labels[index]:
            raise BadSampleError(f"{self.name}[{row}]", f"its label is {label} and was {self.labels[index]} at first")
        return self.prepare(x[None], generator)[0], label

    def only(self, indices: Tensor) -> ItemSource:
        """A source of these samples only."""
        rows = indices if self.rows is None else self.rows[indices]
        return replace(self, labels=self.labels[indices], rows=rows)


def from_pair(train: Any, test: Any, name: str, steps: int, on_bad_sample: str) -> Dataset:
    """A `Dataset` from a training and a test set."""
    sources = []
    for split, items in (("train", train), ("test", test)):
        if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
            raise ValueError(
                f"the {split} set of {name} is a {type(items).__name__}, which has no length or no samples by index: "
                "give a torch.utils.data.Dataset."
            )
        if len(items) == 0:
            raise ValueError(f"the {split} set of {name} is empty: it needs at least one sample.")
        sources.append(_source(items, f"{name} {split}", on_bad_sample))
    shape = sources[0].shape
    if sources[1].shape != shape:
        raise ValueError(
            f"{name} has samples of shape {shape} to train and {sources[1].shape} to test on: make them alike."
        )
    if len(shape) == 4 and shape[0] != steps:
        raise ValueError(f"{name} has samples of {shape[0]} frames and steps is {steps}: set steps to {shape[0]}.")
    *_, channels, height, width = shape
    classes = count_classes(sources[0].labels, sources[1].labels, name, ("train", "test"))
    return Dataset(
        name=name,
        num_classes=classes,
        in_shape=(channels, height, width),
        events=len(shape) == 4,
        train=sources[0],
        test=sources[1],
    )


def _source(items: Any, name: str, on_bad_sample: str) -> ItemSource:
    with _seeded(0):
        x, label = read_checked(lambda name: read_item(items, 0), f"{name}[0]")
    if x.ndim not in (3, 4) or 0 in x.shape:
        raise ValueError(
            f"{name}[0] has a sample of shape {tuple(x.shape)}: give images [C, H, W], or events [T, C, H, W]."
        )
    labels = _known_labels(items)
    if labels is None or labels[0] != label:
        labels = [_label(items, row, name) for row in progress(range(len(items)), f"reading the labels of {name}")]
    shape, numbers = tuple(x.shape), torch.tensor(labels, dtype=torch.int64)
    return ItemSource(items=items, shape=shape, labels=numbers, name=name, on_bad_sample=on_bad_sample)


def _known_labels(items: Any) -> list[int] | None:
    """All labels, if the dataset keeps them in a list."""
    for attribute in LABELS:
        try:
            labels = np.asarray(getattr(items, attribute, None))
        except Exception:  # whatever it is, it is not a list of numbers
            continue
        if labels.shape == (len(items),) and labels.dtype.kind in "iu":
            return labels.tolist()
    return None


def _label(items: Any, row: int, name: str) -> int:
    with _seeded(row):
        return read_checked(lambda name: read_item(items, row), f"{name}[{row}]")[1]


def read_item(items: Any, row: int) -> tuple[Tensor, int]:
    """A sample as a tensor, and its label."""
    item = items[row]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(f"it is a {type(item).__name__} instead of a pair of a sample and a label")
    x, label = item
    if not isinstance(x, Tensor | np.ndarray):
        raise ValueError(
            f"its sample is a {type(x).__name__} instead of a tensor; a transform such as ToTensor makes one"
        )
    x = torch.as_tensor(x)
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError("its sample has values that are not finite")
    number = np.asarray(label)
    if number.shape not in ((), (1,)) or number.dtype.kind not in "iu":
        raise ValueError(f"its label is {label!r} instead of one whole number")
    return x.detach().cpu(), int(number.reshape(()))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Inside, the three generators that transforms draw from start at this seed; afterwards they continue as before."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002, others draw from it
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed every GPU, which takes a millisecond
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
