"""A fingerprint that tells one dataset from another: a run that is resumed must see the data that it began with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Dataset, FileSource, MemorySource
from .items import ItemSource

READ_BYTES = 256 * 10**6
"""At most this many bytes of a source in memory are read: all samples, or evenly spaced ones."""
MEASURED_FILES = 10_000
"""This many evenly spaced files of a source on disk are asked for their size."""
READ_FILES = 64
"""This many evenly spaced files of a source on disk are opened."""
READ_START = 1 << 16
"""This many bytes of each of those are read."""


def fingerprint(data: Dataset) -> str:
    """A hash of 32 letters and digits that two datasets share if they hold the same samples in the same order.

    It depends on shapes, dtypes, every label, the values of samples in memory, and the names and sizes of files with
    the beginning of some; of a user's own dataset it depends on shapes and labels only. It does not depend on where the
    data is, what its folder is called, when it was written, or how samples are augmented. Only a part of large data is
    read, so a change of a single sample may go unnoticed there.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"1 {data.num_classes} {tuple(data.in_shape)} {data.events}".encode())
    for source in (data.train, data.test):
        digest.update(f"\n{type(source).__name__} {len(source)}\n".encode())
        digest.update(source.labels.to(torch.int64).numpy().tobytes())
        if isinstance(source, MemorySource):
            _add_samples(digest, source)
        elif isinstance(source, FileSource):
            _add_files(digest, source)
        elif isinstance(source, ItemSource):  # its own random transforms may give other samples each time
            digest.update(f"{source.shape}\n".encode())
    return digest.hexdigest()


def _add_samples(digest: hashlib.blake2b, source: MemorySource) -> None:
    samples = source.samples
    digest.update(f"{samples.dtype} {tuple(samples.shape[1:])}\n".encode())
    size = max(samples[0].numel() * samples.element_size(), 1)
    chosen = _evenly(len(source), max(READ_BYTES // size, 1))
    rows = chosen if source.rows is None else source.rows[chosen]
    for part in rows.split(max((1 << 24) // size, 1)):
        digest.update(samples[part].contiguous().flatten().view(torch.uint8).numpy().data)


def _add_files(digest: hashlib.blake2b, source: FileSource) -> None:
    paths = [os.path.abspath(path) for path, _ in source.files]
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    for path in paths:
        digest.update(os.fsencode(os.path.relpath(path, common)) + b"\0")
    for path in _pick(paths, MEASURED_FILES):
        digest.update(f"{_size(path)}\n".encode())
    for path in _pick(paths, READ_FILES):
        digest.update(_start(path))


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:  # it is not decided here whether a file that cannot be read stops the run
        return None


def _start(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(READ_START)
    except OSError:
        return b""


def _pick(paths: Sequence[str], most: int) -> list[str]:
    return [paths[place] for place in _evenly(len(paths), most).tolist()]


def _evenly(count: int, most: int) -> Tensor:
    """The numbers from 0 to count - 1, or this many evenly spaced ones, with the first and the last."""
    if count <= most:
        return torch.arange(count)
    return torch.arange(most) * (count - 1) // max(most - 1, 1)
