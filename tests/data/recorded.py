"""Writers of recordings in the formats of cameras, byte by byte as their makers document them."""

import struct
from pathlib import Path

import numpy as np

DESCRIPTION = """<dv version="2.0"><node name="outInfo"><node name="1">
<attr key="typeIdentifier">IMUS</attr></node><node name="0"><attr key="compression">NONE</attr>
<attr key="typeIdentifier">EVTS</attr>
<node name="info"><attr key="sizeX">{width}</attr><attr key="sizeY">{height}</attr></node></node></node></dv>"""

Events = dict[str, np.ndarray]


def aedat2(events: Events, camera: str | None = "DVS128") -> bytes:
    """Big-endian pairs of address and time; a header line names the camera."""
    x, y, p, t = (events[name].astype(np.int64) for name in "xypt")
    address = x << 1 | y << 8 | p if camera in ("DVS128", None) else x << 12 | y << 22 | p << 11
    header = b"#!AER-DAT2.0\r\n# Timestamps tick is 1 us\r\n"
    header += f"# AEChip: eu.seebetter.ini.chips.davis.{camera}\r\n".encode() if camera else b""
    return header + np.stack([address, t], axis=1).astype(">u4").tobytes()


def aedat3(events: Events, packets: int = 3, overflow: int = 0) -> bytes:
    """Little-endian packets of polarity events, with one of another type between them."""
    x, y, p, t = (events[name].astype(np.int64) for name in "xypt")
    words = np.stack([x << 17 | y << 2 | p << 1 | 1, t], axis=1).astype("<u4")
    content = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DVS128\r\n#!END-HEADER\r\n"
    for part in np.array_split(words, packets):
        content += struct.pack("<hhiiiiii", 1, 1, 8, 4, overflow, len(part), len(part), len(part)) + part.tobytes()
        content += struct.pack("<hhiiiiii", 0, 1, 8, 4, overflow, 2, 2, 2) + bytes(16)
    return content


def aedat4(events: Events, width: int, height: int, packing: int = 0, pack=bytes, packets: int = 3) -> bytes:
    """FlatBuffers in packets, the stream of events beside another one."""
    content = b"#!AER-DAT4.0\r\n"
    description = DESCRIPTION.format(width=width, height=height).encode()
    content += flatbuffer(b"IOHE", [("i", packing), ("q", -1), ("vector", (len(description), description + b"\0"))])
    for part in np.array_split(np.arange(len(events["x"])), packets):
        dtype = [("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("p", "u1"), ("padding", "V3")]
        rows = np.zeros(len(part), dtype)
        for name in "txyp":
            rows[name] = events[name][part]
        body = pack(flatbuffer(b"EVTS", [("vector", (len(rows), rows.tobytes()))]))
        content += struct.pack("<iI", 0, len(body)) + body + struct.pack("<iI", 1, 5) + bytes(5)
    return content


def flatbuffer(identifier: bytes, fields: list[tuple]) -> bytes:
    """One table with fields ("i", number), ("q", number) or ("vector", (count, bytes)), after its size."""
    sizes = {"i": 4, "q": 8, "vector": 4}
    offsets, end = {}, 4
    for number in sorted(range(len(fields)), key=lambda number: -sizes[fields[number][0]]):
        offsets[number], end = end, end + sizes[fields[number][0]]
    names = struct.pack("<HH", 4 + 2 * len(fields), end) + b"".join(
        struct.pack("<H", offsets[number]) for number in range(len(fields))
    )
    table = (8 + len(names) + 7) // 8 * 8 + 4
    out = bytearray(table + end)
    out[:8] = struct.pack("<I", table) + identifier
    out[8 : 8 + len(names)] = names
    struct.pack_into("<i", out, table, table - 8)
    for number, (kind, value) in enumerate(fields):
        place = table + offsets[number]
        if kind == "vector":
            out += bytes(-(len(out) + 4) % 8)
            struct.pack_into("<I", out, place, len(out) - place)
            out += struct.pack("<I", value[0]) + value[1]
        else:
            struct.pack_into(f"<{kind}", out, place, value)
    return struct.pack("<I", len(out)) + bytes(out)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
