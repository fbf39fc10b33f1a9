"""Events to frames: a recording cut into T parts, each counted per pixel and polarity."""

from __future__ import annotations

import numpy as np

from .archives import check_promise

SPLITS = {"number": "number", "count": "number", "time": "time"}
"""How a recording is cut: into parts of equally many events, which has two names, or of equal duration."""


def check_split(split_by: str) -> str:
    """The canonical name of a way to cut."""
    if split_by not in SPLITS:
        raise ValueError(f'split_by is {split_by!r}: choose "number" (equally many events per frame) or "time".')
    return SPLITS[split_by]


def check_frames_fit(steps: int, height: int, width: int) -> None:
    """Reject sizes at which the frames of one recording do not fit in memory."""
    try:
        check_promise(steps * 2 * height * width * 8, f"one recording in {steps} frames of {width} × {height} pixels")
    except ValueError as error:
        raise ValueError(f"{error}: lower steps or check the sensor's size.") from None


def integrate(
    x: np.ndarray,
    y: np.ndarray,
    polarity: np.ndarray,
    steps: int,
    height: int,
    width: int,
    times: np.ndarray | None = None,
) -> np.ndarray:
    """Counts [T, 2, H, W] of events in the order they happened; channel 1 holds the positive ones.

    Every frame takes N // T events, and the last one the remainder as well. With `times` each frame takes the events of
    a T-th of the duration, which is rounded down if times are whole numbers. An event outside the image is an error.
    """
    check_inside(x, y, height, width)
    x, y = x.astype(np.int64), y.astype(np.int64)
    frame = _by_number(len(x), steps) if times is None else _by_time(times, steps)
    cell = ((frame * 2 + (polarity > 0)) * height + y) * width + x
    return np.bincount(cell, minlength=steps * 2 * height * width).reshape(steps, 2, height, width)


def _by_number(events: int, steps: int) -> np.ndarray:
    share = events // steps
    return np.minimum(np.arange(events) // share, steps - 1) if share else np.full(events, steps - 1)


def _by_time(times: np.ndarray, steps: int) -> np.ndarray:
    if times.dtype.kind == "f":
        times = times.astype(np.float64)
        share = (times[-1] - times[0]) / steps or 1.0
    else:
        times = times.astype(np.int64)
        share = max((times[-1] - times[0]) // steps, 1)
    return np.minimum((times - times[0]) // share, steps - 1).astype(np.int64)


def check_inside(x: np.ndarray, y: np.ndarray, height: int, width: int) -> None:
    """Reject a recording without events, or with events outside the image."""
    if len(x) == 0:
        raise ValueError("there are no events")
    if x.min() < 0 or y.min() < 0 or x.max() >= width or y.max() >= height:
        raise ValueError(
            f"events lie from ({x.min():g}, {y.min():g}) to ({x.max():g}, {y.max():g}), outside {width} × {height} "
            "pixels"
        )
