"""Reading AEDAT 2.0 and 3.1, the older files of iniVation's cameras.

Coordinates and polarities are returned as they are in the file; they are not rotated or mirrored between versions.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from .recordings import Events

SENSORS = {"dvs128": (128, 128), "davis240": (240, 180), "davis346": (346, 260), "davis640": (640, 480)}
"""Width and height of the cameras that headers name."""

PACKET = np.dtype(
    [("type", "<i2"), ("source", "<i2"), ("size", "<i4"), ("offset", "<i4"), ("overflow", "<i4"), ("capacity", "<i4"),
     ("number", "<i4"), ("valid", "<i4")]
)  # fmt: skip
POLARITY = 1
"""The type of the packets that hold events of pixels."""


def read_aedat(path: Path, columns: str = "") -> Events:
    """A recording of version 2.0 or 3.x, as its first line says."""
    content = path.read_bytes()
    if not content:
        raise ValueError("it is empty")
    version = re.match(rb"#!AER-DAT(\d)\.\d", content)
    if version is None:
        raise ValueError("its first line is neither #!AER-DAT2.0 nor #!AER-DAT3.1, so its version is unknown")
    if version[1] == b"2":
        return _read_version_2(content)
    if version[1] == b"3":
        return _read_version_3(content)
    remedy = "files of version 4 must end in .aedat4" if version[1] == b"4" else "versions 2.0 and 3.1 are read"
    raise ValueError(f"it is of version {version[0][9:].decode()}, and {remedy}")


def _read_version_2(content: bytes) -> Events:
    """Pairs of an address and a time in µs, four bytes each, big-endian."""
    lines = re.match(rb"(#[^\r\n\x80-\xff]*\r?\n)+", content)  # an event may begin with # too, but is not text
    if lines is None:
        raise ValueError("its header has no end")
    header, start = lines[0], len(lines[0])
    if (len(content) - start) % 8:
        raise ValueError(f"its {len(content) - start} bytes after the header are not a multiple of the 8 of an event")
    pairs = np.frombuffer(content, ">i4", offset=start).reshape(-1, 2)
    address, t = pairs[:, 0].astype(np.int64) & 0xFFFFFFFF, pairs[:, 1].astype(np.int64)
    sensor = _sensor(header)
    if sensor is None and len(address) and address.max() < 1 << 16:  # jAER's first camera, from before headers named it
        sensor = SENSORS["dvs128"]
    if sensor is None:
        raise ValueError(f"its header names none of the cameras {', '.join(SENSORS)}, so addresses have no meaning")
    if sensor == SENSORS["dvs128"]:
        kept = address & 1 << 15 == 0  # otherwise it is an external signal
        x, y, p = address >> 1 & 0x7F, address >> 8 & 0x7F, address & 1
    else:
        kept = address & (1 << 31 | 1 << 10) == 0  # otherwise it is a picture, the motion sensor or an external signal
        x, y, p = address >> 12 & 0x3FF, address >> 22 & 0x1FF, address >> 11 & 1
    return Events(t[kept], x[kept], y[kept], p[kept], sensor)


def _read_version_3(content: bytes) -> Events:
    """Packets of one type each; an event is a word of bits and a time in µs, little-endian."""
    mark = b"#!END-HEADER\r\n"
    place = content.find(mark)
    if place < 0:
        raise ValueError("its header has no end")
    header, place = content[:place], place + len(mark)
    words, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    while place < len(content):
        if len(content) - place < PACKET.itemsize:
            raise ValueError(f"it is cut short in the header of a packet at byte {place}")
        packet = np.frombuffer(content, PACKET, count=1, offset=place)[0]
        kind, _, size, _, overflow, capacity, number, _ = (int(value) for value in packet)
        place += PACKET.itemsize
        if size <= 0 or not 0 <= number <= capacity or not 0 <= overflow < 1 << 31:
            raise ValueError(f"it has a packet of {number} events of {size} bytes at byte {place}")
        if len(content) - place < size * capacity:
            raise ValueError(f"it is cut short in a packet of {capacity} events at byte {place}")
        if kind == POLARITY:
            if size != 8:
                raise ValueError(f"it has events of {size} bytes instead of 8 at byte {place}")
            pairs = np.frombuffer(content, "<u4", count=2 * number, offset=place).reshape(-1, 2).astype(np.int64)
            words.append(pairs[:, 0])
            times.append(pairs[:, 1] | overflow << 31)
        place += size * capacity
    word, t = np.concatenate(words), np.concatenate(times)
    valid = word & 1 == 1
    word, t = word[valid], t[valid]
    return Events(t, word >> 17 & 0x7FFF, word >> 2 & 0x7FFF, word >> 1 & 1, _sensor(header))


def _sensor(header: bytes) -> tuple[int, int] | None:
    """The size of the camera that a header names."""
    lines = [line.lower() for line in header.split(b"\n") if re.match(rb"# ?(AEChip|Source \d+):", line)]
    return next((size for name, size in SENSORS.items() for line in lines if name.encode() in line), None)
