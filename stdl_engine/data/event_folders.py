"""Your own recordings of an event camera: a folder with train/<class>/ and test/<class>/."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

from ..atomic_files import remove_unfinished
from ..extras import MissingExtra
from .aedat import read_aedat
from .aedat4 import read_aedat4
from .arrays import event_preparation
from .base import BadSampleError, Dataset, read_checked
from .cache import VERSION, FrameCache
from .files import Files, list_files, own_splits, read_sealed, state_of, write_sealed
from .frames import check_frames_fit, check_split
from .locks import preparing
from .prepare import check_augment
from .progress import progress
from .recordings import Events, check_events, read_array, read_arrays, read_bin


def _read_hdf5(path: Path, columns: str) -> Events:
    from .hdf5 import read_hdf5  # no other dataset should wait for h5py

    return read_hdf5(path, columns)


READERS: dict[str, Callable[[Path, str], Events]] = {
    ".npy": read_array,
    ".npz": read_arrays,
    ".bin": lambda path, columns: read_bin(path),
    ".aedat": read_aedat,
    ".aedat4": read_aedat4,
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
}
"""The readers of recordings, by file name extension."""


def event_folder(
    *,
    root: Path,
    steps: int,
    on_bad_sample: str = "stop",
    augment: str = "paper",
    split_by: str = "number",
    sensor: str | None = None,
    columns: str = "txyp",
) -> Dataset:
    """The recordings root/train/<class>/* and root/test/<class>/* (or val), as T frames of counted events.

    Files are .npy or .npz (t, x, y, p), .bin (N-MNIST's), .aedat (2.0 and 3.1), .aedat4 and .h5 or .hdf5. `split_by`
    cuts a recording into frames of equally many events ("number" or "count") or of equal duration ("time"). `sensor` is
    the camera's size, for example "346x260"; without it the cameras that files name and the outermost events decide.
    `columns` is the order of the columns of plain arrays [N, 4]. As in the paper events are not augmented, unless
    `augment` is "light", which shifts and mirrors.
    """
    check_augment(augment)
    split_by = check_split(split_by)
    if sorted(columns) != sorted("txyp"):
        raise ValueError(
            f'columns is {columns!r}: write t, x, y and p in the order of the columns, for example "xytp".'
        )
    size = _parse(sensor) if sensor is not None else None
    *splits, classes = own_splits(root, "recordings")
    train, test = (list_files(split, classes, tuple(READERS)) for split in splits)
    read = functools.partial(_read, columns=columns)
    try:
        width, height = size or _find_sensor(root, [*train, *test], read, steps, columns, on_bad_sample)
        cache = FrameCache(
            root=root,
            read=read,
            shape=(steps, height, width),
            split_by=split_by,
            ordered=True,
            on_bad_sample=on_bad_sample,
            reading=columns,
        )
        prepare = event_preparation(augment, width)
        sources = [cache.source(files, split, prepare) for files, split in ((train, "train"), (test, "test"))]
    except MissingExtra as error:
        raise ValueError(str(error)) from error  # commands print this error as one sentence
    return Dataset(
        name=root.name,
        num_classes=len(classes),
        in_shape=(2, height, width),
        events=True,
        train=sources[0],
        test=sources[1],
    )


def _read(path: Path, columns: str) -> Events:
    name = path.name.lower()
    read = next(read for end, read in READERS.items() if name.endswith(end))
    try:
        return read(path, columns)
    except MissingExtra as error:  # not the file's fault: never skipped
        raise MissingExtra(f"a library that {path} needs is missing; {error}", name=error.name) from error


def _parse(sensor: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9}) ?[x×] ?(\d{1,9})", sensor) if isinstance(sensor, str) else None
    if found is None or not all(map(int, found.groups())):
        raise ValueError(f'sensor is {sensor!r}: write its width and height in pixels, for example "346x260".')
    return int(found[1]), int(found[2])


def _find_sensor(
    root: Path, files: Files, read: Callable[[Path], Events], steps: int, columns: str, on_bad_sample: str
) -> tuple[int, int]:
    """Width and height that hold every event and every camera that a file names; found once and stored."""
    known = root / "frames_sensor.json"
    wanted = {"version": VERSION, "source": state_of((path for path, _ in files), root), "columns": columns}
    entry = read_sealed(known, wanted)
    if entry is None:
        with preparing(root, f"the sensor's size of {root.name}") as alone:
            entry = read_sealed(known, wanted)
            if entry is None:
                if alone:
                    remove_unfinished(known.parent, known.name)
                width, height = _outermost(root, files, read, steps, on_bad_sample)
                entry = {**wanted, "width": width, "height": height}
                write_sealed(known, entry)
    return entry["width"], entry["height"]


def _outermost(
    root: Path, files: Files, read: Callable[[Path], Events], steps: int, on_bad_sample: str
) -> tuple[int, int]:
    width = height = 0
    for path, _ in progress(files, f"looking for the size of the sensor of {root.name}"):
        try:
            wide, high = read_checked(lambda path: _size(read(path)), path)
        except BadSampleError:
            if on_bad_sample == "stop":
                raise
            continue
        width, height = max(width, wide), max(height, high)
        try:
            check_frames_fit(steps, height, width)
        except ValueError as error:
            raise ValueError(
                f"{path} has events as far as {wide} × {high} pixels, too large a sensor for {steps} frames in memory: "
                "pass the camera's size as sensor, so that files with events outside are refused."
            ) from error
    if width == 0:
        raise ValueError(f"none of the {len(files)} recordings in {root} can be read: replace them.")
    return width, height


def _size(events: Events) -> tuple[int, int]:
    check_events(events)
    wide, high = int(events.x.max()) + 1, int(events.y.max()) + 1
    return max(wide, events.sensor[0] if events.sensor else 0), max(high, events.sensor[1] if events.sensor else 0)
