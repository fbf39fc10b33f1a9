"""What data a run was begun on, in one word, so that it is not gone on with on other data."""

from __future__ import annotations

import hashlib

import torch

from .data import Dataset, MemorySource

CHUNK = 256
"""Samples that are read at once."""
SIZES_READ = 1000
"""Files of a source whose sizes count; all names and labels do."""


def fingerprint(data: Dataset) -> str:
    """The hash of a dataset: of samples in memory every byte, of files their names, labels and some of their sizes.

    Where the data lies does not count, as it may be moved.
    """
    found = hashlib.sha256(f"{data.num_classes} {tuple(data.in_shape)} {data.events}".encode())
    for source in (data.train, data.test):
        if isinstance(source, MemorySource):
            found.update(f"{tuple(source.samples.shape)} {source.samples.dtype}".encode())
            for chunk in (*source.samples.split(CHUNK), source.labels):
                found.update(chunk.contiguous().view(torch.uint8).numpy())
        else:
            every = max(1, len(source.files) // SIZES_READ)
            for number, (path, label) in enumerate(source.files):
                size = path.stat().st_size if number % every == 0 else ""
                found.update(f"{path.parent.name}/{path.name} {label} {size}\n".encode())
    return found.hexdigest()[:32]
