"""Frames of recordings, made once and kept on disk.

A split is one file of numbers and, written last, a manifest with its length and checksum. A cache that is incomplete,
damaged, or made from other recordings or by another version does not match its manifest and is rebuilt; so is one whose
manifest was edited. One process builds it and others wait; the next one clears away what a killed process left.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..atomic_files import remove_unfinished
from .base import BadSampleError, MemorySource, read_checked
from .files import Files, read_sealed, state_of, write_sealed
from .frames import check_frames_fit, integrate
from .locks import preparing
from .prepare import Preparation
from .progress import progress
from .recordings import Events, check_events

VERSION = 2
"""The version of the cache's contents; caches of other versions are rebuilt."""

DTYPES = (np.uint8, np.int16, np.int32)
"""The dtypes for counts: the first that holds all of them is used."""


@dataclass(frozen=True, kw_only=True)
class FrameCache:
    """How the recordings of a folder become frames, and where these are kept: root/frames_T<T>, or frames_T<T>_by_time
    for frames of equal duration.
    """

    root: Path
    read: Callable[[Path], Events]
    shape: tuple[int, int, int]
    """Time steps, height and width."""
    split_by: str = "number"
    ordered: bool = False
    """Whether times that go backwards make a recording bad even where frames do not depend on them."""
    reading: str = ""
    """What else `read` depends on: if this text changes, the frames are made again."""
    on_bad_sample: str = "stop"
    """With "skip" files that cannot be read are left out; with "stop" they are an error, also when the cache was made
    without them."""

    @property
    def folder(self) -> Path:
        by_time = "_by_time" if self.split_by == "time" else ""
        return self.root / f"frames_T{self.shape[0]}{by_time}"

    def source(self, files: Files, split: str, prepare: Preparation) -> MemorySource:
        """The frames [N, T, 2, H, W] of these recordings, from the cache, which is built now if need be.

        They are memory-mapped from their file: only what is being read takes memory.
        """
        check_frames_fit(*self.shape)
        data, manifest = self.folder / f"{split}.bin", self.folder / f"{split}.json"
        wanted = {
            "version": VERSION,
            "source": state_of((path for path, _ in files), self.root),
            "shape": list(self.shape),
            "reading": [self.ordered, self.reading],
        }
        entry = _usable(data, manifest, wanted)
        if entry is None:
            entry = self._make(files, data, manifest, wanted)
        bad = [BadSampleError(self.root / name, reason) for name, reason in entry["bad"]]
        if bad and self.on_bad_sample == "stop":
            raise bad[0]
        left_out = {error.path for error in bad}
        labels = torch.tensor([label for path, label in files if path not in left_out], dtype=torch.int64)
        # mode "c" keeps writes to the tensor out of the file
        steps, height, width = self.shape
        frames = np.memmap(data, entry["dtype"], mode="c", shape=(len(labels), steps, 2, height, width))
        return MemorySource(
            samples=torch.from_numpy(frames),
            labels=labels,
            prepare=prepare,
            bad_samples=tuple(error.path for error in bad),
        )

    def _make(self, files: Files, data: Path, manifest: Path, wanted: dict) -> dict:
        what = f"the frames of {self.root.name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with preparing(self.folder, what) as alone:
                entry = _usable(data, manifest, wanted)
                if entry is not None:  # made while this process waited
                    return entry
                if alone:
                    remove_unfinished(manifest.parent, manifest.name)
                    for leftover in self.folder.glob(f"{data.name}.*"):
                        leftover.unlink(missing_ok=True)
                entry = {**wanted, **self._convert(files, data)}
                write_sealed(manifest, entry)
                return entry
        except OSError as error:
            if error.strerror is None:  # has its own message
                raise
            raise OSError(
                f"{what} cannot be kept in {self.folder} ({error.strerror}): make room or make the folder writable, or "
                "copy the data to a place that has both."
            ) from error

    def _convert(self, files: Files, data: Path) -> dict:
        """Write the file of numbers and return what the manifest says about it."""
        temporary = data.with_name(f"{data.name}.{os.getpid()}.partial")
        try:
            for dtype in DTYPES:
                try:
                    entry = self._write(files, dtype, temporary)
                except OverflowError:
                    continue
                temporary.replace(data)
                return entry
        finally:
            temporary.unlink(missing_ok=True)
        raise AssertionError("no recording has 2**31 events")

    def _write(self, files: Files, dtype: type[np.integer], temporary: Path) -> dict:
        bad: list[tuple[str, str]] = []
        checksum = size = 0
        with temporary.open("wb") as out:
            for path, _ in progress(files, f"integrating events of {self.root.name}"):
                try:
                    frames = read_checked(self._integrate, path)
                except BadSampleError as error:
                    if self.on_bad_sample == "stop":
                        raise
                    bad.append((str(path.relative_to(self.root)), error.reason))
                    continue
                if frames.max() > np.iinfo(dtype).max:
                    raise OverflowError
                row = frames.astype(dtype).tobytes()
                out.write(row)
                checksum = zlib.crc32(row, checksum)
                size += len(row)
            out.flush()
            os.fsync(out.fileno())
        if len(bad) == len(files):
            raise ValueError(
                f"none of the {len(files)} recordings in {self.root} can be read, {bad[0][0]} for one: {bad[0][1]}."
            )
        return {"dtype": np.dtype(dtype).name, "bytes": size, "crc32": checksum, "bad": bad}

    def _integrate(self, path: Path) -> np.ndarray:
        events = self.read(path)
        by_time = self.split_by == "time"
        check_events(events, ordered=self.ordered or by_time)
        return integrate(events.x, events.y, events.p, *self.shape, times=events.t if by_time else None)


def _usable(data: Path, manifest: Path, wanted: dict) -> dict | None:
    """The contents of the manifest, if the file of numbers agrees with it."""
    entry = read_sealed(manifest, wanted)
    if entry is None or not data.is_file() or data.stat().st_size != entry["bytes"]:
        return None
    checksum = 0
    with data.open("rb") as file:
        while chunk := file.read(1 << 24):
            checksum = zlib.crc32(chunk, checksum)
    return entry if checksum == entry["crc32"] else None
