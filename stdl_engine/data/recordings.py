"""Reading recordings of event cameras: x, y and polarity (1 or 0) of each event in the order of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

Events = tuple[np.ndarray, np.ndarray, np.ndarray]


def read_bin(path: Path) -> Events:
    """N-MNIST's .bin: 40 bits an event, x in 8, y in 8, polarity in 1 and the time in µs in 23."""
    data = np.fromfile(path, np.uint8)
    if len(data) % 5:
        raise ValueError(f"its {len(data)} bytes are not a multiple of the 5 of an event")
    data = data.reshape(-1, 5)
    return data[:, 0], data[:, 1], data[:, 2] >> 7


def read_text(path: Path) -> Events:
    """GAIT-DAY-DVS's .txt: a line an event, t x y p, where p = 1 is positive and all else negative."""
    if path.stat().st_size == 0:
        raise ValueError("there are no events")
    data = np.loadtxt(path, ndmin=2)
    if data.shape[1] != 4:
        raise ValueError(f"its lines have {data.shape[1]} columns instead of t x y p")
    if not np.isfinite(data).all() or (data[:, 1:3] % 1).any():
        raise ValueError("its coordinates are not all whole numbers")
    return data[:, 1].astype(np.int64), data[:, 2].astype(np.int64), (data[:, 3] == 1).astype(np.uint8)
