"""Compiled kernels on disk: found again by the next process, never out of date, never half written."""

import ctypes
import os

import numba
import pytest
import torch
from numba import carray

from stdl_engine.kernels import cpu_cache, cpu_threads
from stdl_engine.kernels.bits import cpu as bits
from stdl_engine.kernels.bits.reference import pack


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv(cpu_cache.VARIABLE, str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.fixture
def compiled(monkeypatch):
    """What numba compiled."""
    found, cfunc = [], numba.cfunc

    def noted(*args, **options):
        return lambda body: found.append(body) or cfunc(*args, **options)(body)

    monkeypatch.setattr(cpu_threads.numba, "cfunc", noted)
    return found


def fresh(dtype: torch.dtype = torch.float32):
    """The kernel that unpacks bits, as a new process makes it."""
    return bits._kernel.__wrapped__(dtype, adds=False)


def assert_unpacks(kernel) -> None:
    dense, spikes = torch.full((37,), 7.0), (torch.arange(37) % 3 == 0).float()
    packed = pack(spikes)
    cpu_threads.run(kernel, bits._Record(0, 37, packed.data_ptr(), dense.data_ptr()), 37)
    assert torch.equal(dense, spikes)


def test_the_next_process_finds_it(home, compiled):
    assert_unpacks(fresh())
    assert len(compiled) == 1
    assert_unpacks(fresh())
    assert len(compiled) == 1
    (file,) = home.iterdir()
    assert file.stat().st_mode & 0o077 == 0


def test_another_kernel_has_another_file(home, compiled):
    fresh()
    fresh(torch.float64)
    assert len(compiled) == len(list(home.iterdir())) == 2


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-1], lambda c: c[:40] + b"x" + c[41:], lambda c: b"", lambda c: b"?" * 9]
)
def test_a_damaged_file_is_compiled_anew(home, compiled, damage):
    fresh()
    (file,) = home.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert_unpacks(fresh())
    assert len(compiled) == 2
    assert file.read_bytes()[:20] == whole[:20]
    assert_unpacks(fresh())
    assert len(compiled) == 2


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner here")
def test_a_file_of_someone_else_is_not_run(home, compiled, monkeypatch):
    fresh()
    mine = os.getuid()
    monkeypatch.setattr(cpu_cache.os, "getuid", lambda: mine + 1)
    fresh()
    assert len(compiled) == 2


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, compiled):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cpu_cache.VARIABLE, str(tmp_path / "file" / "kernels"))
    assert_unpacks(fresh())
    assert len(compiled) == 1


def test_it_can_be_switched_off(monkeypatch, compiled):
    monkeypatch.setenv(cpu_cache.VARIABLE, "off")
    assert cpu_cache.folder() is None
    assert_unpacks(fresh())
    assert_unpacks(fresh())
    assert len(compiled) == 2


def test_a_user_without_a_home(monkeypatch):
    def homeless():
        raise RuntimeError

    monkeypatch.delenv(cpu_cache.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert cpu_cache.folder() == cpu_cache.Path("somewhere/stdl-engine/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(cpu_cache.Path, "home", homeless)
    assert cpu_cache.folder() is None


def test_a_killed_writer_leaves_no_kernel(home, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cpu_cache.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        fresh()
    assert list(home.iterdir()) == []


def test_all_that_machine_code_depends_on_is_in_the_name(home, monkeypatch):
    monkeypatch.setattr(bits, "compile_kernel", lambda body, record: body)
    body, names = fresh(), []
    codegen = type(cpu_cache.cpu_target.target_context.codegen())
    changes = [
        (bits, "CHUNK", 16),
        (numba.config, "OPT", 1),
        (codegen, "magic_tuple", lambda _: ("triple", "another CPU", "")),
        (cpu_cache.Path, "read_bytes", lambda _: b"another source"),
    ]
    for place, name, value in [(cpu_cache, "VARIABLE", cpu_cache.VARIABLE), *changes]:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            cpu_cache._surroundings.cache_clear()
            names += [cpu_cache.place_of(body, bits._Record)]
            assert names[-1] == cpu_cache.place_of(fresh(), bits._Record)
    cpu_cache._surroundings.cache_clear()
    assert None not in names
    assert len(set(names)) == len(names)


class _Record(ctypes.Structure):
    _fields_ = (("ticket", ctypes.c_int64), ("target", ctypes.c_int64))


def writer(value):
    """A kernel that is no part of the package."""

    def body(p):
        carray(cpu_threads.pointer(carray(p, 1)[0].target), (1,), numba.int64)[0] = value

    return body


def test_a_kernel_from_elsewhere_is_not_kept(home):
    """Its source is not in the name, so it could be out of date."""
    assert cpu_cache.place_of(writer(3), _Record) is None
    assert cpu_cache.place_of(fresh, _Record) is None


def test_closures_are_described_by_what_they_hold():
    described = [tuple(cpu_cache._described(value)) for value in (1, True, 1.0, "1", None, (1,), (1, 1), torch.float32)]
    assert len(set(described)) == len(described)
    with pytest.raises(cpu_cache.Unknown):
        tuple(cpu_cache._described(object()))
