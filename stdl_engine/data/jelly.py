"""Frames of SpikingJelly's event datasets: its classes, its folders and our conversion to frames, all or nothing.

SpikingJelly keeps frames file by file in `frames_number_<T>_split_by_<number or time>`. Here that folder is built
beside its place and moved there when it is complete, and a marker with its size is written last; a folder without its
marker, or of another size, is rebuilt. One process builds and others wait; the next one clears away what a killed
process left.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets.utils import check_integrity

from ..atomic_files import remove_unfinished
from .archives import read_npz, reason_of
from .base import BadSampleError, read_checked
from .cache import VERSION
from .files import read_sealed, state_of, walk, write_sealed
from .frames import check_frames_fit, integrate
from .locks import preparing
from .progress import progress
from .recordings import check_events, from_fields

THREADS = 4
"""Threads that write frames. Compression releases Python's lock, so threads help; more would wait for the disk."""


def prepare_recordings(kind: type[Any], root: Path, page: str) -> None:
    """Make sure that root/events_np exists, if need be converted by SpikingJelly from the archives in root/download."""
    recordings, ours, theirs = (root / name for name in ("events_np", "events_np.ours.json", "events_np.building"))
    if not ours.exists():
        if theirs.exists():
            raise ValueError(
                f"SpikingJelly's conversion to {recordings} was cut short or is under way: wait for it, or delete "
                f"{recordings}, {root / 'extract'} and {theirs}."
            )
        if recordings.is_dir():
            return
    archives = kind.resource_url_md5()
    missing = [name for name, _, _ in archives if not (root / "download" / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{kind.__name__} is not in {root}, which lacks events_np (recordings as SpikingJelly keeps them) and "
            f"download/{missing[0]} to make them from: get the {len(archives)} files of {page} and put them in "
            f"{root / 'download'}."
        )
    with preparing(root, f"the recordings of {kind.__name__}") as alone:
        if ours.exists():  # a process was killed meanwhile, unless this file system has no locks
            if not alone:
                raise ValueError(f"another process may be converting to {recordings}: if not, delete {ours}.")
            begun = read_sealed(ours, {}) or {"extracted": True}
            _clear(root, begun["extracted"])
        elif recordings.is_dir():  # made while this process waited
            return
        for name, _, md5 in archives:  # SpikingJelly would delete a damaged archive and download it again
            if not check_integrity(root / "download" / name, md5):
                raise ValueError(f"the archive {root / 'download' / name} is damaged: get it again from {page}.")
        extracted = (root / "extract").exists()
        write_sealed(ours, {"extracted": extracted})
        try:
            kind(root, data_type="event")
        except BaseException as error:
            _clear(root, extracted)
            if not isinstance(error, Exception):
                raise
            raise ValueError(
                f"SpikingJelly cannot convert {root / 'download'} ({reason_of(error)}): get its files again at {page}."
            ) from error
        ours.unlink()


def _clear(root: Path, extracted: bool) -> None:
    """Remove an unfinished conversion, and what was extracted for it unless that was there before."""
    for name in ("events_np", "download/temp_ext", *(() if extracted else ("extract",))):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("events_np.building", "events_np.ours.json"):
        (root / name).unlink(missing_ok=True)
    remove_unfinished(root, "events_np.ours.json")


def build_frames(kind: type[Any], root: Path, steps: int, split_by: str, on_bad_sample: str) -> tuple[Path, ...]:
    """Make sure that the frames of root/events_np exist, and name the recordings that cannot be read."""
    recordings, frames = root / "events_np", root / f"frames_number_{steps}_split_by_{split_by}"
    marker = root / f"{frames.name}.complete.json"
    paths = walk(recordings, ".npz")
    if not paths:
        raise ValueError(f"the folder {recordings} has no recordings: it must hold <class>/*.npz.")
    height, width = kind.get_H_W()
    check_frames_fit(steps, height, width)
    wanted = {"version": VERSION, "source": state_of(paths, root)}
    entry = _usable(marker, frames, wanted)
    if entry is None:
        with preparing(root, f"the frames of {root.name}") as alone:
            entry = _usable(marker, frames, wanted)
            if entry is None:
                marker.unlink(missing_ok=True)
                if alone:
                    remove_unfinished(marker.parent, marker.name)
                    _clear_frames(frames)
                conversion = _Conversion(recordings, frames, steps, height, width, split_by == "time")
                bad = conversion.run(paths, on_bad_sample)
                names = [[str(Path(error.path).relative_to(root)), error.reason] for error in bad]
                entry = {**wanted, "size": _size(frames), "bad": names}
                write_sealed(marker, entry)
    errors = [BadSampleError(root / name, reason) for name, reason in entry["bad"]]
    if errors and on_bad_sample == "stop":
        raise errors[0]
    return tuple(root / name for name, _ in entry["bad"])


def read_frames(path: Path) -> Tensor:
    """A file of frames [T, 2, H, W]."""
    return torch.from_numpy(read_npz(path, lambda names: ["frames"])["frames"].astype(np.float32))


def _usable(marker: Path, frames: Path, wanted: dict) -> dict | None:
    """The contents of the marker, if the folder of frames agrees with it."""
    entry = read_sealed(marker, wanted)
    return entry if entry is not None and entry["size"] == _size(frames) else None


def _size(folder: Path) -> list[int]:
    """How many files there are in a folder, and how many bytes."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return [len(sizes), sum(sizes)]


def _clear_frames(frames: Path) -> None:
    """Remove what a killed process left of these frames, and SpikingJelly's mark of an unfinished folder."""
    for leftover in frames.parent.glob(f"{frames.name}.partial*"):
        shutil.rmtree(leftover, ignore_errors=True)
    frames.with_name(f"{frames.name}.building").unlink(missing_ok=True)


@dataclass(frozen=True)
class _Conversion:
    """Recordings to frames, file by file."""

    recordings: Path
    frames: Path
    steps: int
    height: int
    width: int
    by_time: bool

    def run(self, paths: list[Path], on_bad_sample: str) -> list[BadSampleError]:
        """Build the folder of frames, and name the recordings that could not be read."""
        partial = self.frames.with_name(f"{self.frames.name}.partial{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            for folder in {path.parent for path in paths}:
                partial.joinpath(folder.relative_to(self.recordings)).mkdir(parents=True, exist_ok=True)
            bad = self._convert_all(paths, partial, on_bad_sample)
            shutil.rmtree(self.frames, ignore_errors=True)
            partial.replace(self.frames)
        except OSError as error:
            raise OSError(
                f"the frames of {self.recordings} cannot be kept in {self.frames.parent} ({reason_of(error)}): make "
                "room or make the folder writable, or copy the data to a place that has both."
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return bad

    def _convert_all(self, paths: list[Path], partial: Path, on_bad_sample: str) -> list[BadSampleError]:
        def convert(path: Path) -> BadSampleError | None:
            try:
                frames = read_checked(self._integrate, path)
            except BadSampleError as error:
                return error
            np.savez_compressed(partial / path.relative_to(self.recordings), frames=frames)
            return None

        bad: list[BadSampleError] = []
        with ThreadPoolExecutor(THREADS) as pool:
            futures = [pool.submit(convert, path) for path in paths]
            try:
                for future in progress(futures, f"integrating events of {self.recordings.parent.name}"):
                    error = future.result()
                    if error is not None and on_bad_sample == "stop":
                        raise error
                    bad += [error] if error is not None else []
            except BaseException:  # also for an interrupt: the pool would finish all files before it stopped
                pool.shutdown(cancel_futures=True)
                raise
        if len(bad) == len(paths):
            raise ValueError(
                f"none of the {len(paths)} recordings in {self.recordings} can be read, {bad[0].path} for one: "
                f"{bad[0].reason}."
            )
        return bad

    def _integrate(self, path: Path) -> np.ndarray:
        events = from_fields(read_npz(path, lambda names: [name for name in names if name in "txyp"]))
        check_events(events, ordered=self.by_time)
        times = events.t if self.by_time else None
        frames = integrate(events.x, events.y, events.p, self.steps, self.height, self.width, times)
        return frames.astype(np.float32)
