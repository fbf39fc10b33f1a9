"""Reading AEDAT 4, the files of iniVation's DV: packets of FlatBuffers, compressed by LZ4, by Zstandard or not at all.

No size or offset in a file is trusted before it is checked against the bytes that are there.
"""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np

from ..extras import extra
from .recordings import Events

LINE = b"#!AER-DAT4.0\r\n"
NONE, LZ4, LZ4_HIGH, ZSTD, ZSTD_HIGH = range(5)
"""How packets are compressed, by the numbers that headers use."""
LARGEST_PACKET = 1 << 30
"""In bytes, once unpacked; recorders write packets of a few milliseconds."""

EVENT = np.dtype([("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("on", "u1"), ("padding", "V3")])


def read_aedat4(path: Path, columns: str = "") -> Events:
    """The events of the first camera of a recording."""
    content = path.read_bytes()
    if not content:
        raise ValueError("it is empty")
    if not content.startswith(LINE):
        raise ValueError("its first line is not #!AER-DAT4.0")
    header, place = _prefixed(content, len(LINE))
    packing, table, description = header.number(0, "<i"), header.number(1, "<q"), header.vector(2, 1)
    camera, sensor = _camera(description.decode())
    end = table if table > 0 else len(content)  # a table of contents may follow the packets
    if not place <= end <= len(content):
        raise ValueError(f"it is cut short: its packets end at byte {end} and the file at {len(content)}")
    packets = [np.empty(0, EVENT)]
    while place < end:
        if end - place < 8:
            raise ValueError(f"it is cut short at byte {place}")
        stream, size = struct.unpack_from("<iI", content, place)
        place += 8
        if size > end - place:
            raise ValueError(f"it is cut short in a packet of {size} bytes at byte {place}")
        if stream == camera:
            packet, _ = _prefixed(_unpack(content[place : place + size], packing), 0)
            packets.append(np.frombuffer(packet.vector(0, EVENT.itemsize), EVENT))
        place += size
    events = np.concatenate(packets)
    return Events(events["t"], events["x"], events["y"], events["on"], sensor)


def _camera(description: str) -> tuple[int, tuple[int, int]]:
    """The number of the first stream of events that the header describes, and its width and height."""
    streams = {}
    for node in ElementTree.fromstring(description).iter("node"):
        attributes = {attribute.get("key"): attribute.text or "" for attribute in node.findall("attr")}
        if attributes.get("typeIdentifier") == "EVTS":
            info = node.find("node[@name='info']")
            size = {attribute.get("key"): attribute.text or "" for attribute in ([] if info is None else info)}
            streams[int(node.get("name", ""))] = (int(size.get("sizeX", "0")), int(size.get("sizeY", "0")))
    if not streams:
        raise ValueError("it holds no stream of events")
    return min(streams.items())


def _unpack(data: bytes, packing: int) -> bytes:
    if packing == NONE:
        return data
    if packing in (LZ4, LZ4_HIGH):
        with extra("events"):
            import lz4.frame
        frame = lz4.frame.LZ4FrameDecompressor()
        unpacked = frame.decompress(data, max_length=LARGEST_PACKET)
        if not frame.eof:
            raise ValueError("it has a packet that is cut short or unpacks to more than a gigabyte")
        return unpacked
    if packing in (ZSTD, ZSTD_HIGH):
        with extra("events"):
            import zstandard
        if zstandard.frame_content_size(data) > LARGEST_PACKET:
            raise ValueError("it has a packet that unpacks to more than a gigabyte")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=LARGEST_PACKET)
    raise ValueError(f"its packets are compressed in an unknown way, number {packing}")


def _prefixed(content: bytes, place: int) -> tuple[_Table, int]:
    """The table of a FlatBuffer that begins with its size, and where it ends."""
    start = place + 4
    if start > len(content):
        raise ValueError(f"it is cut short at byte {place}")
    (size,) = struct.unpack_from("<I", content, place)
    if size < 8 or size > len(content) - start:
        raise ValueError(f"it is cut short: {size} bytes are promised at byte {place}")
    return _Table(content[start : start + size]), start + size


class _Table:
    """The root table of a FlatBuffer: its fields by number, every offset checked."""

    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self.place = self._number(0, "<I")
        self.fields = self.place - self._number(self.place, "<i")
        self.size = self._number(self.fields, "<H")

    def number(self, field: int, layout: str) -> int:
        """A number, 0 if it was left out."""
        place = self._field(field)
        return self._number(place, layout) if place is not None else 0

    def vector(self, field: int, item: int) -> bytes:
        """The bytes of a vector or string whose items have this many bytes; empty if it was left out."""
        place = self._field(field)
        if place is None:
            return b""
        place += self._number(place, "<I")
        size = self._number(place, "<I") * item
        if size > len(self.buffer) - place - 4:
            raise ValueError(f"it is damaged: a vector of {size} bytes is promised in a packet of {len(self.buffer)}")
        return self.buffer[place + 4 : place + 4 + size]

    def _field(self, field: int) -> int | None:
        entry = 4 + 2 * field
        offset = self._number(self.fields + entry, "<H") if entry < self.size else 0
        return self.place + offset if offset else None

    def _number(self, place: int, layout: str) -> int:
        if not 0 <= place <= len(self.buffer) - struct.calcsize(layout):
            raise ValueError("it is damaged: an offset leads out of a packet")
        return struct.unpack_from(layout, self.buffer, place)[0]
