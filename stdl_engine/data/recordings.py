"""Recordings of event cameras: what one is, whether it is possible, and the formats that we read ourselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .archives import read_npy, read_npz

ALIASES = {
    "t": ("t", "ts", "time", "timestamp", "timestamps"),
    "x": ("x", "xs"),
    "y": ("y", "ys"),
    "p": ("p", "ps", "pol", "polarity", "on"),
}
"""What files call the fields of an event."""


class Events(NamedTuple):
    """A recording, event by event in the order of the file."""

    t: np.ndarray
    """Times, in any unit."""
    x: np.ndarray
    y: np.ndarray
    p: np.ndarray
    """Polarities: 1, or 0 or -1 for negative ones."""
    sensor: tuple[int, int] | None = None
    """Width and height of the camera, where the file knows them."""


def check_events(events: Events, ordered: bool = True) -> None:
    """Reject a recording that no camera can have made; `ordered` says whether its times matter."""
    named = [(name, np.asarray(getattr(events, name))) for name in "txyp"]
    for name, values in named:
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise ValueError(
                f"its {name} has shape {values.shape} and dtype {values.dtype} instead of one number per event"
            )
    if len({len(values) for _, values in named}) > 1:
        raise ValueError(f"it has {', '.join(f'{len(values)} {name}' for name, values in named)}: one is cut short")
    if len(events.x) == 0:
        raise ValueError("there are no events")
    for name, values in named:
        if values.dtype.kind == "f":
            _reject(name, values, ~np.isfinite(values), "not a number")
            if name != "t":
                _reject(name, values, values % 1 != 0, "not a whole number")
        if name in "xy":
            _reject(name, values, values < 0, "outside of every sensor")
    p = events.p
    if not any(((p == negative) | (p == 1)).all() for negative in (0, -1)):
        found = np.unique(p)
        shown = ", ".join(f"{value:g}" for value in found[:5]) + (", ..." if len(found) > 5 else "")
        raise ValueError(f"its polarities are {shown} instead of 0 and 1 or -1 and 1")
    if ordered:
        check_ordered(events.t)


def check_ordered(t: np.ndarray) -> None:
    """Reject times that go backwards: sorting would hide a clock that wrapped, or two recordings in one file."""
    back = np.flatnonzero(t[1:] < t[:-1])
    if len(back):
        place = int(back[0])
        raise ValueError(
            f"its times go backwards from {t[place]:g} to {t[place + 1]:g} at event {place + 1}; if they are only out "
            "of order, sort the events by time and save them again"
        )


def _reject(name: str, values: np.ndarray, wrong: np.ndarray, why: str) -> None:
    if wrong.any():
        place = int(np.argmax(wrong))
        raise ValueError(f"its {name} is {values[place]:g} at event {place}, which is {why}")


def read_bin(path: Path) -> Events:
    """N-MNIST's .bin: 40 bits per event, x in 8, y in 8, polarity in 1 and the time in µs in 23."""
    data = np.fromfile(path, np.uint8)
    if len(data) % 5:
        raise ValueError(f"its {len(data)} bytes are not a multiple of the 5 of an event")
    data = data.reshape(-1, 5)
    high, middle, low = (data[:, column].astype(np.int64) for column in (2, 3, 4))
    return Events((high & 127) << 16 | middle << 8 | low, data[:, 0], data[:, 1], data[:, 2] >> 7)


def read_text(path: Path) -> Events:
    """GAIT-DAY-DVS's .txt: one line per event, t x y p, where p = 1 is positive and 0 and -1 are negative."""
    if path.stat().st_size == 0:
        raise ValueError("there are no events")
    data = np.loadtxt(path, ndmin=2)
    if data.shape[1] != 4:
        raise ValueError(f"its lines have {data.shape[1]} columns instead of t x y p")
    t, x, y, p = data.T
    _reject("p", p, ~np.isin(p, (-1, 0, 1)), "neither 1 nor 0 nor -1")
    return Events(t, x, y, p == 1)


def read_array(path: Path, columns: str) -> Events:
    """A .npy: a structured array with the fields t, x, y and p, or [N, 4] with these columns."""
    return _from_array(read_npy(path), columns)


def read_arrays(path: Path, columns: str) -> Events:
    """A .npz: the arrays t, x, y and p, or one array that holds all four."""
    everything = {alias for aliases in ALIASES.values() for alias in aliases}
    arrays = read_npz(path, lambda names: [name for name in names if len(names) == 1 or name in everything])
    if len(arrays) == 1:
        return _from_array(next(iter(arrays.values())), columns)
    return from_fields(arrays)


def from_fields(fields: Mapping[str, np.ndarray]) -> Events:
    """Events from arrays, by name."""
    found = {}
    for name, aliases in ALIASES.items():
        present = [alias for alias in aliases if alias in fields]
        if len(present) != 1:
            there = f"has {' and '.join(present)} for {name}" if present else f"has no {name}"
            raise ValueError(f"it {there}; its arrays must be t, x, y and p")
        found[name] = np.asarray(fields[present[0]])
    return Events(found["t"], found["x"], found["y"], found["p"])


def _from_array(array: np.ndarray, columns: str) -> Events:
    if array.dtype.names is not None:
        return from_fields({name: array[name] for name in array.dtype.names})
    if array.ndim != 2 or array.shape[1] != 4:
        raise ValueError(f"it has shape {array.shape} instead of fields t, x, y and p or four columns")
    t, x, y, p = (array[:, columns.index(name)] for name in "txyp")
    return Events(t, x, y, p)
