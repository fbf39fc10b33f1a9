"""Frames of SpikingJelly's event datasets: its classes, its integration, its folders, built all or nothing.

SpikingJelly converts recordings file by file into `frames_number_<T>_split_by_number`. Here that folder is built beside
its place and moved there when it is whole, and a marker with its size is written last; a folder without its marker, or
of another size, is built again.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets.utils import check_integrity

from .base import BadSampleError, read_checked
from .files import read_json, state_of, write_json
from .frames import check_inside
from .progress import progress

THREADS = 4
"""Compressing the frames releases Python's lock; more threads than this wait for the disk."""


def prepare_recordings(kind: type, root: Path, page: str) -> None:
    """Make sure of root/events_np: there already, or converted by SpikingJelly from the archives in root/download."""
    recordings, unfinished = root / "events_np", root / "events_np.building"
    if unfinished.exists():
        raise ValueError(
            f"the conversion to {recordings} was cut short: delete {recordings}, {root / 'extract'} and {unfinished}."
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
    for name, _, md5 in archives:  # SpikingJelly would delete a damaged one, and download it again
        if not check_integrity(root / "download" / name, md5):
            raise ValueError(f"the archive {root / 'download' / name} is damaged: get it again from {page}.")
    kind(root, data_type="event")


def build_frames(kind: type, root: Path, steps: int, on_bad_sample: str) -> tuple[Path, ...]:
    """Make sure of the frames of root/events_np, and name the recordings that cannot be read."""
    recordings, frames = root / "events_np", root / f"frames_number_{steps}_split_by_number"
    marker = root / f"{frames.name}.complete.json"
    paths = sorted(recordings.rglob("*.npz"))
    if not paths:
        raise ValueError(f"the folder {recordings} has no recordings: it must hold <class>/*.npz.")
    source = state_of(paths, root)
    entry = read_json(marker)
    if entry.get("source") != source or entry.get("size") != _size(frames):
        marker.unlink(missing_ok=True)
        bad = _convert(kind, paths, recordings, frames, steps, on_bad_sample)
        names = [(str(error.path.relative_to(root)), error.reason) for error in bad]
        entry = {"source": source, "size": _size(frames), "bad": names}
        write_json(marker, entry)
    errors = [BadSampleError(root / name, reason) for name, reason in entry["bad"]]
    if errors and on_bad_sample == "stop":
        raise errors[0]
    return tuple(error.path for error in errors)


def read_frames(path: Path) -> Tensor:
    """A file of frames [T, 2, H, W] that SpikingJelly's integration made."""
    with np.load(path) as file:
        return torch.from_numpy(file["frames"].astype(np.float32))


def _size(folder: Path) -> list[int]:
    """How many files there are in a folder, and how many bytes."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return [len(sizes), sum(sizes)]


def _convert(
    kind: type, paths: list[Path], recordings: Path, frames: Path, steps: int, on_bad_sample: str
) -> list[BadSampleError]:
    partial = frames.with_name(f"{frames.name}.partial")
    for leftover in (partial, frames):
        shutil.rmtree(leftover, ignore_errors=True)
    frames.with_name(f"{frames.name}.building").unlink(missing_ok=True)  # SpikingJelly's own mark of a cut-short folder
    for folder in {path.parent for path in paths}:
        partial.joinpath(folder.relative_to(recordings)).mkdir(parents=True, exist_ok=True)

    def convert(path: Path) -> BadSampleError | None:
        try:
            read_checked(lambda path: _integrate(kind, path, partial / path.relative_to(recordings), steps), path)
        except BadSampleError as error:
            return error
        return None

    bad: list[BadSampleError] = []
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(convert, path) for path in paths]
        try:
            for future in progress(futures, f"integrating events of {recordings.parent.name}"):
                error = future.result()
                if error is not None and on_bad_sample == "stop":
                    raise error
                bad += [error] if error is not None else []
        except BaseException:  # an interrupt too: the pool would finish all files before it let go
            pool.shutdown(cancel_futures=True)
            shutil.rmtree(partial)
            raise
    partial.replace(frames)
    return bad


def _integrate(kind: type, path: Path, target: Path, steps: int) -> None:
    from spikingjelly.datasets import utils  # loads matplotlib and more: only when it is needed

    with np.load(path) as file:
        events = {key: file[key] for key in ("t", "x", "y", "p")}
    height, width = kind.get_H_W()
    check_inside(events["x"], events["y"], height, width)
    frames = utils.integrate_events_by_fixed_frames_number(events, "number", steps, height, width)
    utils.np_savez(target, frames=frames.astype(np.float32))
