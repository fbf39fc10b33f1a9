"""Broken, lying and hostile .npy and .npz files: a reason for each, before any room is made for what they promise."""

import io
import os
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from stdl_engine.data.archives import check_promise, read_npy, read_npz

LARGE = 10**13


def header(shape, dtype: str = "<f8", version: int = 1) -> bytes:
    """Of a .npy file, whatever it promises."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text


def npz(content: bytes, compression: int = zipfile.ZIP_STORED) -> bytearray:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        archive.writestr("x.npy", content)
    return bytearray(out.getvalue())


def encrypted(content: bytearray) -> bytearray:
    """With the mark of encryption in both headers."""
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(magic) + offset] |= 1
    return content


def bomb() -> bytearray:
    """A directory and a header that agree on four gigabytes, and a few bytes of content."""
    size = 0xFFFFFFF0
    text = header((size - 128,), "|u1")
    text = text[:-1] + b" " * (128 - len(text)) + b"\n"
    text = text[:8] + struct.pack("<H", 118) + text[10:]
    content = npz(text + bytes(100), zipfile.ZIP_DEFLATED)
    struct.pack_into("<I", content, content.index(b"PK\x01\x02") + 24, size)
    return content


def saved(**arrays) -> bytearray:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return bytearray(out.getvalue())


def crc_changed() -> bytearray:
    content = saved(x=np.arange(100))
    content[400] ^= 1
    return content


def method_changed() -> bytearray:
    content = npz(header((1,)) + bytes(8))
    for magic, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        struct.pack_into("<H", content, content.index(magic) + offset, 99)
    return content


NPZ = {
    "empty": (b"", "File is not a zip file"),
    "encrypted": (encrypted(npz(header((1,)) + bytes(8))), "it is encrypted"),
    "cut short": (saved(x=np.arange(100))[:-50], "File is not a zip file"),
    "no directory": (saved(x=np.arange(100))[:300], "File is not a zip file"),
    "terabytes": (npz(header((LARGE,)) + bytes(80)), rf"the header of x promises {8 * LARGE} bytes of shape"),
    "terabytes, packed": (npz(header((LARGE,)) + bytes(80), zipfile.ZIP_DEFLATED), r"the header of x promises 8000000"),
    "more than fits in 64 bits": (npz(header((2**40, 2**40)) + bytes(80)), r"the header of x promises 96714065569170"),
    "negative": (npz(header((-5,)) + bytes(80)), r"x has shape \(-5,\)"),
    "bomb": (bomb(), r"x promises 4294967280 bytes out of \d+ compressed ones"),
    "objects": (saved(x=np.array([{"a": 1}], dtype=object)), "x holds Python objects, which are never loaded"),
    "another array's bytes": (npz(header((3,)) + bytes(80)), r"promises 24 bytes of shape \(3,\), and there are 80"),
    "no array": (npz(b"hello"), "."),
    "nothing in it": (npz(b""), "x is empty"),
    "unknown version": (npz(header((1,), version=9) + bytes(8)), r"x has the unknown version \(9, 0\) of the format"),
    "a damaged byte": (crc_changed(), "Bad CRC-32"),
    "unknown packing": (method_changed(), "compression"),
    "a header of code": (npz(header("__import__('os').system('true')") + bytes(8)), "."),
    "single": (header((1,)) + bytes(8), "it is a single array"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), NPZ.values(), ids=NPZ)
def test_npz(tmp_path, content, message):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message) as caught:
            read_npz(path, lambda names: names)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


NPY = {
    "empty": (b"", "it is empty"),
    "terabytes": (header((LARGE,)) + bytes(80), r"the header of it promises 8000000000"),
    "objects": (header((1,), "|O") + pickle.dumps([{"a": 1}]), "it holds Python objects"),
    "a pickle": (pickle.dumps(np.zeros(3)), "magic string is not correct"),
    "cut short": (header((10,)) + bytes(79), r"promises 80 bytes of shape \(10,\), and there are 79"),
    "half a header": (header((10,))[:20], "."),
    "a long header": (header((10,) * 5000), "."),
}


@pytest.mark.parametrize(("content", "message"), NPY.values(), ids=NPY)
def test_npy(tmp_path, content, message):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_npy(path)


def test_whole_files_are_read(tmp_path):
    arrays = {
        "f": np.asfortranarray(np.random.default_rng(0).random((3, 4))),
        "s": np.zeros(3, [("t", np.int64), ("x", np.uint8)]),
        "scalar": np.float32(3),
        "none": np.zeros((0, 5)),
        "a.b": np.arange(3),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    for name in ("a.npz", "b.npz"):
        found = read_npz(tmp_path / name, lambda names: names)
        assert found.keys() == arrays.keys()
        for key, value in arrays.items():
            assert found[key].dtype == value.dtype
            assert np.array_equal(found[key], value)
    for value in arrays.values():
        np.save(tmp_path / "a.npy", value)
        assert np.array_equal(read_npy(tmp_path / "a.npy"), value)
    assert read_npz(tmp_path / "a.npz", lambda names: ["s"]).keys() == {"s"}


def test_more_than_the_machine_has():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    check_promise(memory, "it")
    with pytest.raises(ValueError, match=r"^it has [\d.]+ \w+, and this machine's memory [\d.]+ \w+$"):
        check_promise(memory + 1, "it")


def test_arrays_that_fit_one_by_one_only(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.zeros(600, np.uint8), y=np.zeros(600, np.uint8))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert len(read_npz(tmp_path / "a.npz", lambda names: ["x"])["x"]) == 600
    with pytest.raises(ValueError, match=r"^it all together has [^,]+, and this machine's memory "):
        read_npz(tmp_path / "a.npz", lambda names: names)
