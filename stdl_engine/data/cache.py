"""Frames of recordings, integrated once and kept on disk.

A split is one file of numbers and, written last, a manifest with its length and checksum. A cache that was cut short,
damaged or made from other recordings does not match its manifest and is made again.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .base import BadSampleError, read_checked
from .files import Files, read_json, state_of, write_json
from .frames import integrate
from .progress import progress
from .recordings import Events

DTYPES = (np.uint8, np.int16, np.int32)
"""Of the counts: the first that holds them all."""


@dataclass(frozen=True, kw_only=True)
class CachedFrames:
    """The frames of one split, mapped from their file: only what is being read takes memory."""

    frames: Tensor
    """[N, T, 2, H, W]"""
    labels: Tensor
    bad_samples: tuple[Path, ...]


def cached_frames(
    files: Files,
    read: Callable[[Path], Events],
    shape: tuple[int, int, int],
    *,
    root: Path,
    split: str,
    on_bad_sample: str,
) -> CachedFrames:
    """The frames of these recordings, T, height and width being `shape`, out of root/frames_T<T> or put there now.

    With on_bad_sample="skip" files that cannot be read are left out; with "stop" they are an error, also when the cache
    was made without them.
    """
    steps, height, width = shape
    folder = root / f"frames_T{steps}"
    data, manifest = folder / f"{split}.bin", folder / f"{split}.json"
    source = state_of((path for path, _ in files), root)
    entry = read_json(manifest)
    if entry.get("source") != source or not _intact(data, entry):
        entry = {"source": source, **_convert(files, read, shape, data, root, on_bad_sample)}
        write_json(manifest, entry)
    bad = [BadSampleError(root / name, reason) for name, reason in entry["bad"]]
    if bad and on_bad_sample == "stop":
        raise bad[0]
    labels = torch.tensor(entry["labels"], dtype=torch.int64)
    # mode "c" keeps writes to the tensor out of the file
    frames = np.memmap(data, entry["dtype"], mode="c", shape=(len(labels), steps, 2, height, width))
    return CachedFrames(frames=torch.from_numpy(frames), labels=labels, bad_samples=tuple(error.path for error in bad))


def _intact(data: Path, entry: dict) -> bool:
    if not data.is_file() or data.stat().st_size != entry.get("bytes"):
        return False
    checksum = 0
    with data.open("rb") as file:
        while chunk := file.read(1 << 24):
            checksum = zlib.crc32(chunk, checksum)
    return checksum == entry.get("crc32")


def _convert(
    files: Files,
    read: Callable[[Path], Events],
    shape: tuple[int, int, int],
    data: Path,
    root: Path,
    on_bad_sample: str,
) -> dict:
    """Write the file of numbers and return what the manifest says about it."""
    data.parent.mkdir(parents=True, exist_ok=True)
    temporary = data.with_name(f"{data.name}.{os.getpid()}.partial")
    try:
        for dtype in DTYPES:
            try:
                entry = _write(files, read, shape, dtype, temporary, root, on_bad_sample)
            except OverflowError:
                continue
            temporary.replace(data)
            return entry
    finally:
        temporary.unlink(missing_ok=True)
    raise AssertionError("no recording has 2**31 events")


def _write(
    files: Files,
    read: Callable[[Path], Events],
    shape: tuple[int, int, int],
    dtype: type[np.integer],
    temporary: Path,
    root: Path,
    on_bad_sample: str,
) -> dict:
    labels: list[int] = []
    bad: list[tuple[str, str]] = []
    checksum = size = 0
    with temporary.open("wb") as out:
        for path, label in progress(files, f"integrating events of {root.name}"):
            try:
                frames = read_checked(lambda path: integrate(*read(path), *shape), path)
            except BadSampleError as error:
                if on_bad_sample == "stop":
                    raise
                bad.append((str(path.relative_to(root)), error.reason))
                continue
            if frames.max() > np.iinfo(dtype).max:
                raise OverflowError
            row = frames.astype(dtype).tobytes()
            out.write(row)
            checksum = zlib.crc32(row, checksum)
            size += len(row)
            labels.append(label)
        out.flush()
        os.fsync(out.fileno())
    if not labels:
        raise ValueError(
            f"none of the {len(files)} recordings in {root} can be read, {bad[0][0]} for one: {bad[0][1]}."
        )
    return {"dtype": np.dtype(dtype).name, "bytes": size, "crc32": checksum, "labels": labels, "bad": bad}
