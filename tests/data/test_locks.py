"""Several processes at one cache: all succeed, the work is done once, and one that is killed leaves nothing behind."""

import errno
import fcntl
import multiprocessing
import os
import signal
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

from stdl_engine.data import jelly, load_dataset, locks
from stdl_engine.data.locks import preparing

from .samples import all_of, counted, random_events
from .test_cache import Reader, expected, files, load
from .test_jelly import cifar, recording, write_npz

__all__ = ["cifar", "files"]

FORK = multiprocessing.get_context("fork")  # a new Python would take seconds to import torch


def together(work, count: int = 2) -> list:
    """What several processes return that begin the same work at the same time."""
    ready, results = FORK.Barrier(count), FORK.Queue()

    def run() -> None:
        try:
            ready.wait(30)
            results.put(work())
        except BaseException:
            results.put(traceback.format_exc())

    processes = [FORK.Process(target=run) for _ in range(count)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    return found


def killed(work) -> None:
    """A process that kills itself on the way."""
    process = FORK.Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


class Slow(Reader):
    def __call__(self, path):
        time.sleep(0.05)
        return super().__call__(path)


class Killed(Reader):
    def __call__(self, path):
        if self.calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(path)


def test_frames_are_made_by_one_process(files):
    def work():
        read = Slow()
        source = load(files, read)
        return read.calls, torch.equal(source.samples.float(), expected())

    assert sorted(together(work, 3)) == [(0, True), (0, True), (5, True)]
    folder = files[0][0].parent.parent / "frames_T3"
    assert sorted(path.name for path in folder.iterdir()) == ["train.bin", "train.json"]


def test_what_a_killed_process_left_is_cleared_away(files):
    killed(lambda: load(files, Killed()))
    folder = files[0][0].parent.parent / "frames_T3"
    left = sorted(path.name for path in folder.iterdir())
    assert len(left) == 2
    assert left[0] == ".lock"
    assert left[1].endswith(".partial")
    (folder / ".train.json.abc").write_text("half a manifest")
    assert torch.equal(load(files).samples.float(), expected())
    assert sorted(path.name for path in folder.iterdir()) == ["train.bin", "train.json"]


def test_a_cache_that_cannot_be_written_is_still_read(files, monkeypatch):
    load(files)

    def no_lock(*_):
        raise AssertionError("the cache is whole, and its folder may be read-only")

    monkeypatch.setattr(locks, "_acquire", no_lock)
    assert torch.equal(load(files).samples.float(), expected())


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written(files, monkeypatch, number):
    opened = os.open

    def refuse(path, *arguments, **options):
        if str(path).endswith(".lock"):
            raise OSError(number, os.strerror(number), path)
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        OSError, match=r"^the frames of \S+ cannot be prepared in \S+frames_T3 \(.+\): make that folder "
    ):
        load(files)


def test_a_full_disk(files, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"^the frames of \S+ cannot be kept in \S+ \(No space left on device\): make room"
    ):
        load(files)
    assert list((files[0][0].parent.parent / "frames_T3").iterdir()) == []


def test_a_file_system_without_locks(files, monkeypatch):
    def unsupported(handle, operation):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    other = files[0][0].parent.parent / "frames_T3" / "train.bin.123.partial"
    other.parent.mkdir()
    other.touch()
    assert torch.equal(load(files).samples.float(), expected())
    assert other.exists()  # it may be somebody's at work


def test_one_after_the_other(tmp_path):
    """Each adds to a number that it reads, thinks about, and writes: nothing gets lost."""
    (tmp_path / "number").write_text("0")

    def work():
        for _ in range(20):
            with preparing(tmp_path, "a number") as alone:
                assert alone
                number = int((tmp_path / "number").read_text())
                time.sleep(0.001)
                (tmp_path / "number").write_text(str(number + 1))

    assert together(work, 4) == [None] * 4
    assert (tmp_path / "number").read_text() == "80"
    assert [path.name for path in tmp_path.iterdir()] == ["number"]


def test_who_waits_says_so(tmp_path, capfd):
    begun = FORK.Event()

    def hold():
        with preparing(tmp_path, "everything"):
            begun.set()
            time.sleep(0.5)

    process = FORK.Process(target=hold)
    process.start()
    begun.wait(30)
    with preparing(tmp_path, "everything"):
        pass
    process.join(30)
    assert "waiting for another process that prepares everything" in capfd.readouterr().err


def test_spikingjellys_frames_are_made_by_one_process(cifar):
    def work():
        calls = []
        integrate = jelly._Conversion._integrate

        def counting(conversion, path):
            calls.append(path)
            return integrate(conversion, path)

        jelly._Conversion._integrate = counting
        x, _ = all_of(load_dataset("cifar10-dvs", cifar, steps=3).test)
        return len(calls), torch.equal(x[:, 1], counted(recording(1, 9), 3, 128, 128))

    assert sorted(together(work)) == [(0, True), (30, True)]


def test_spikingjellys_frames_after_a_kill(cifar):
    def work():
        def kill(conversion, path):
            if path.name == "cifar10_bird_2.npz":
                os.kill(os.getpid(), signal.SIGKILL)
            return np.zeros((3, 2, 128, 128))

        jelly._Conversion._integrate = kill
        load_dataset("cifar10-dvs", cifar, steps=3)

    killed(work)
    home = cifar / "cifar10-dvs"
    assert len(list(home.glob("*.partial*"))) == 1
    x, _ = all_of(load_dataset("cifar10-dvs", cifar, steps=3).test)
    assert torch.equal(x[:, 2], counted(recording(2, 9), 3, 128, 128))
    assert sorted(path.name for path in home.iterdir()) == [
        "events_np",
        "frames_number_3_split_by_number",
        "frames_number_3_split_by_number.complete.json",
    ]


class Archives:
    """A dataset of SpikingJelly's kind: converts root/download to root/events_np by way of root/extract."""

    dies: str = ""

    @classmethod
    def resource_url_md5(cls) -> list:
        return [("all.zip", "", None)]

    def __init__(self, root: Path, data_type: str) -> None:
        assert data_type == "event"
        (root / "events_np.building").touch(exist_ok=False)
        if not (root / "extract").exists():
            (root / "extract").mkdir()
            (root / "extract/all").write_text("extracted")
        (root / "events_np").mkdir()
        time.sleep(0.2)
        if self.dies == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.dies:
            raise RuntimeError("no such archive")
        write_npz(root / "events_np/a/1.npz", random_events(9, 4, 4))
        with (root / "log").open("a") as log:
            log.write("converted\n")
        (root / "events_np.building").unlink()


@pytest.fixture
def archives(tmp_path):
    (tmp_path / "download").mkdir()
    (tmp_path / "download/all.zip").write_bytes(b"archive")
    return tmp_path


def convert(root, dies: str = "") -> None:
    kind = type("Archives", (Archives,), {"dies": dies})
    jelly.prepare_recordings(kind, root, "https://example.org")


def contents(root) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_recordings_are_converted_by_one_process(archives):
    assert together(lambda: convert(archives), 3) == [None] * 3
    assert (archives / "log").read_text() == "converted\n"
    assert contents(archives) == ["download", "events_np", "extract", "log"]


@pytest.mark.parametrize("extracted", [False, True])
def test_recordings_after_a_kill(archives, extracted):
    if extracted:
        (archives / "extract").mkdir()
        (archives / "extract/mine").write_text("kept")
    killed(lambda: convert(archives, "killed"))
    assert (archives / "events_np.building").exists()
    convert(archives)
    assert contents(archives) == ["download", "events_np", "extract", "log"]
    assert (archives / "extract/mine").exists() == extracted


def test_a_conversion_that_fails_leaves_nothing(archives):
    with pytest.raises(
        ValueError, match=r"^SpikingJelly cannot convert \S+download \(no such archive\): get its files again at https"
    ):
        convert(archives, "fails")
    assert contents(archives) == ["download"]
