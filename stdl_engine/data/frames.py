"""Events to frames: a recording cut into T parts of equally many events, each counted per pixel and polarity."""

from __future__ import annotations

import numpy as np


def integrate(x: np.ndarray, y: np.ndarray, polarity: np.ndarray, steps: int, height: int, width: int) -> np.ndarray:
    """Counts [T, 2, H, W] of events in the order they happened; channel 1 holds the positive ones.

    Every frame takes N // T events, the last one the rest as well. An event outside the image is an error.
    """
    check_inside(x, y, height, width)
    x, y = x.astype(np.int64), y.astype(np.int64)
    events = len(x)
    share = events // steps
    frame = np.minimum(np.arange(events) // share, steps - 1) if share else np.full(events, steps - 1)
    cell = ((frame * 2 + (polarity > 0)) * height + y) * width + x
    return np.bincount(cell, minlength=steps * 2 * height * width).reshape(steps, 2, height, width)


def check_inside(x: np.ndarray, y: np.ndarray, height: int, width: int) -> None:
    """Reject a recording without events, or with events outside the image."""
    if len(x) == 0:
        raise ValueError("there are no events")
    if x.min() < 0 or y.min() < 0 or x.max() >= width or y.max() >= height:
        raise ValueError(
            f"events lie from ({x.min()}, {y.min()}) to ({x.max()}, {y.max()}), outside {width} × {height} pixels"
        )
