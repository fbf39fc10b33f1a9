"""AEDAT in all versions that are read, against what was written, SpikingJelly's reader, and damage at every byte."""

import random
import struct
import sys

import numpy as np
import pytest

from stdl_engine.data.aedat import read_aedat
from stdl_engine.data.aedat4 import ZSTD_HIGH, read_aedat4
from stdl_engine.data.base import BadSampleError, read_checked
from stdl_engine.extras import MissingExtra

from .recorded import aedat2, aedat3, aedat4, flatbuffer, write
from .samples import random_events

EVENTS = random_events(50, 100, 120)


def assert_same(found, expected=EVENTS, sensor=None) -> None:
    for name in "txyp":
        assert np.array_equal(getattr(found, name), expected[name]), name
    assert found.sensor == sensor


@pytest.mark.parametrize(
    ("camera", "sensor"),
    [("DVS128", (128, 128)), (None, (128, 128)), ("DAVIS240C", (240, 180)), ("Davis346blue", (346, 260))],
)
def test_version_2(tmp_path, camera, sensor):
    assert_same(read_aedat(write(tmp_path / "a.aedat", aedat2(EVENTS, camera))), sensor=sensor)


def test_version_2_is_read_as_spikingjelly_does_but_for_the_turn(tmp_path):
    from spikingjelly.datasets.cifar10_dvs import _load_origin_data

    path = write(tmp_path / "a.aedat", aedat2(EVENTS))
    ours, theirs = read_aedat(path), _load_origin_data(path)
    assert np.array_equal(ours.t, theirs["t"])
    assert np.array_equal(127 - ours.y, theirs["x"])
    assert np.array_equal(127 - ours.x, theirs["y"])
    assert np.array_equal(1 - ours.p, theirs["p"])


def test_version_2_holds_more_than_events(tmp_path):
    """Pictures (bit 31), the motion sensor (bit 10), and signals from outside (bit 15 of the DVS128)."""
    other = struct.pack(">IIII", 1 << 31 | 5 << 12, 0, 1 << 10, 0)
    davis = aedat2(EVENTS, "DAVIS346") + other
    assert_same(read_aedat(write(tmp_path / "a.aedat", davis)), sensor=(346, 260))
    signal = aedat2(EVENTS) + struct.pack(">II", 1 << 15, 200_000)
    assert_same(read_aedat(write(tmp_path / "a.aedat", signal)), sensor=(128, 128))


def test_version_2_of_an_unknown_camera(tmp_path):
    content = aedat2(EVENTS, "DAVIS346").replace(b"DAVIS346", b"CochleaAMS")
    with pytest.raises(ValueError, match="its header names none of the cameras dvs128, davis240, davis346, davis640, "):
        read_aedat(write(tmp_path / "a.aedat", content))


@pytest.mark.parametrize("overflow", [0, 3])
def test_version_3_is_read_as_spikingjelly_does(tmp_path, overflow):
    from spikingjelly.datasets import load_aedat_v3

    path = write(tmp_path / "a.aedat", aedat3(EVENTS, overflow=overflow))
    theirs = load_aedat_v3(path)
    assert_same(read_aedat(path), theirs, (128, 128))
    assert np.array_equal(theirs["x"], EVENTS["x"])
    assert theirs["t"][7] == EVENTS["t"][7] + (overflow << 31)


def test_version_3_leaves_out_events_that_were_taken_back(tmp_path):
    content = bytearray(aedat3(EVENTS, packets=1))
    first = content.index(b"#!END-HEADER\r\n") + 14 + 28
    content[first + 8 * 4] &= 0xFE
    kept = np.arange(50) != 4
    found = read_aedat(write(tmp_path / "a.aedat", bytes(content)))
    assert_same(found, {name: values[kept] for name, values in EVENTS.items()}, (128, 128))


def test_version_4(tmp_path):
    assert_same(read_aedat4(write(tmp_path / "a.aedat4", aedat4(EVENTS, 120, 100))), sensor=(120, 100))
    no_events = aedat4({name: values[:0] for name, values in EVENTS.items()}, 120, 100)
    assert len(read_aedat4(write(tmp_path / "a.aedat4", no_events)).x) == 0


def test_version_4_with_a_table_of_contents(tmp_path):
    content = aedat4(EVENTS, 120, 100)
    at = content.index(struct.pack("<q", -1))
    content = content[:at] + struct.pack("<q", len(content)) + content[at + 8 :] + b"the table"
    assert_same(read_aedat4(write(tmp_path / "a.aedat4", content)), sensor=(120, 100))


@pytest.mark.parametrize("packing", [1, 2, 3, 4])
def test_version_4_packed(tmp_path, packing):
    if packing < 3:
        pack = pytest.importorskip("lz4.frame").compress
    else:
        pack = pytest.importorskip("zstandard").ZstdCompressor().compress
    path = write(tmp_path / "a.aedat4", aedat4(EVENTS, 120, 100, packing, pack))
    assert_same(read_aedat4(path), sensor=(120, 100))
    path.write_bytes(aedat4(EVENTS, 120, 100, packing, lambda data: pack(data)[:-20]))
    with pytest.raises(BadSampleError, match=r"^the sample \S+ cannot be read \(.+\): replace"):
        read_checked(read_aedat4, path)


@pytest.mark.parametrize(("packing", "library"), [(1, "lz4"), (ZSTD_HIGH, "zstandard")])
def test_a_library_that_is_missing(tmp_path, monkeypatch, packing, library):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(MissingExtra, match=rf"^{library} is not installed: pip install 'stdl-engine\[events\]'\.$"):
        read_aedat4(write(tmp_path / "a.aedat4", aedat4(EVENTS, 120, 100, packing)))


def changed(content: bytes, at: int, value: bytes) -> bytes:
    return content[:at] + value + content[at + len(value) :]


V3 = aedat3(EVENTS, packets=1)
PACKET = V3.index(b"#!END-HEADER\r\n") + 14
V4 = aedat4(EVENTS, 120, 100)


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_aedat, b"", "it is empty"),
        (read_aedat, b"no header", "its first line is neither #!AER-DAT2.0 nor #!AER-DAT3.1"),
        (read_aedat, b"#!AER-DAT1.0\r\n", "it is of version 1.0, and versions 2.0 and 3.1 are read"),
        (read_aedat, b"#!AER-DAT2.0", "its header has no end"),
        (read_aedat, V4, "it is of version 4.0, and files of version 4 must end in .aedat4"),
        (read_aedat, aedat2(EVENTS)[:-3], "its 397 bytes after the header are not a multiple of the 8 of an event"),
        (read_aedat, V3[:-1], "it is cut short in a packet of 2 events"),
        (read_aedat, V3[: PACKET + 20], "it is cut short in the header of a packet"),
        (read_aedat, V3[:30], "its header has no end"),
        (read_aedat, changed(V3, PACKET + 4, bytes(4)), "it has a packet of 50 events of 0 bytes"),
        (read_aedat, changed(V3, PACKET + 16, b"\xff\xff\xff\x7f"), "it is cut short in a packet of 2147483647 events"),
        (read_aedat, changed(V3, PACKET + 20, b"\xff\xff\xff\xff"), "it has a packet of -1 events"),
        (read_aedat, changed(V3, PACKET + 12, b"\xff\xff\xff\xff"), "it has a packet of 50 events of 8 bytes"),
        (read_aedat4, b"", "it is empty"),
        (read_aedat4, V3, "its first line is not #!AER-DAT4.0"),
        (read_aedat4, V4[:14], "it is cut short at byte 14"),
        (read_aedat4, V4[:200], "it is cut short: "),
        (read_aedat4, V4[:-20], "it is cut short in a packet of "),
        (read_aedat4, V4[:-9], "it is cut short at byte "),
        (read_aedat4, V4.replace(b"EVTS", b"FRME", 1), "it holds no stream of events"),
        (read_aedat4, aedat4(EVENTS, 120, 100, packing=9), "compressed in an unknown way, number 9"),
        (read_aedat4, V4.replace(struct.pack("<q", -1), struct.pack("<q", 10**13)), "its packets end at byte 10000000"),
    ],
)  # fmt: skip
def test_damage(tmp_path, read, content, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / "a.aedat", content))


def test_a_vector_that_promises_terabytes(tmp_path):
    body = flatbuffer(b"EVTS", [("vector", (2**32 - 1, bytes(16)))])
    path = write(tmp_path / "a.aedat4", aedat4(EVENTS, 120, 100, pack=lambda data: body))
    with pytest.raises(ValueError, match="a vector of 68719476720 bytes is promised in a packet of "):
        read_aedat4(path)


@pytest.mark.parametrize(
    ("read", "content"), [(read_aedat, aedat2(EVENTS)), (read_aedat, V3), (read_aedat4, V4)], ids=["2", "3", "4"]
)
def test_any_damage_is_told_or_harmless(tmp_path, read, content):
    """Whatever bytes change, the reader ends with an exception or with events, and never with anything else."""
    numbers = random.Random(0)
    path, told = tmp_path / "a.aedat", 0
    for trial in range(400):
        broken = bytearray(content[: numbers.randrange(len(content))] if trial % 2 else content)
        for _ in range(numbers.randrange(1, 6)):
            if broken:
                broken[numbers.randrange(len(broken))] = numbers.randrange(256)
        path.write_bytes(broken)
        try:
            found = read(path)
        except Exception:
            told += 1
        else:
            assert len(found.t) == len(found.x) == len(found.y) == len(found.p) <= 50
    assert told > 50
