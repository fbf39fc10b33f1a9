"""A machine that is too small, full, or not listening: one sentence, and what was done so far is kept."""

import errno
import os
import re
import sys

import numpy as np
import pytest
import torch

from stdl_engine import plan as plan_command
from stdl_engine import train as train_command
from stdl_engine.printer import Printer
from stdl_engine.train import main
from stdl_engine.trainer import Trainer

from .test_resume import assert_same_run


def on_cpu(*_):
    torch.empty(1 << 52)


def of_numpy(*_):
    np.empty(1 << 58)


def on_gpu(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8 GiB")


def of_no_size(*_):
    torch.empty(1 << 40, 1 << 40)


class TestOutOfMemory:
    @pytest.mark.parametrize("fail", [on_cpu, of_numpy, on_gpu, of_no_size])
    @pytest.mark.parametrize("where", ["step", "load_data"])
    def test_train(self, train, tmp_path, monkeypatch, fail, where):
        monkeypatch.setattr(*((Trainer, "_train") if where == "step" else (train_command, "load_data")), fail)
        code, _, complaints = train("--epochs", 1, "--out", tmp_path / "run")
        assert code == 2
        (line,) = complaints.splitlines()
        assert re.match(r"stdl_engine\.train: out of memory.*: lower --batch-size, --width or --steps, or ", line)
        assert (tmp_path / "run").exists() == (where == "step")

    def test_how_much_was_asked_for(self, train, tmp_path, monkeypatch):
        monkeypatch.setattr(Trainer, "_train", on_cpu)
        assert "(18014398.51 GB more were asked for)" in train("--epochs", 1, "--out", tmp_path / "run")[2]

    def test_plan(self, capsys, monkeypatch):
        monkeypatch.setattr(plan_command, "predict_peak", on_cpu)
        assert plan_command.main(["digits"]) == 2
        assert "out of memory" in capsys.readouterr().err

    def test_other_errors_are_not_hidden(self, train, tmp_path, monkeypatch):
        def fail(*_):
            raise RuntimeError("a mistake of ours")

        monkeypatch.setattr(Trainer, "_train", fail)
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            train("--epochs", 1, "--out", tmp_path / "run")
        assert "a mistake of ours" in (tmp_path / "run" / "log.txt").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two epochs in one go: how they were asked for, their folder, and how many files were written."""
    from .conftest import QUICK, write_data

    folder = tmp_path_factory.mktemp("whole")
    data = write_data(folder / "data.npz")
    settings = ["digits", *QUICK, "--data", str(data), "--epochs", "2"]
    written, real = [], os.fsync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: written.append(handle) or real(handle))
        assert main([*settings, "--out", str(folder / "run")]) == 0
    return settings, folder / "run", len(written)


class TestFullDisk:
    MOST_WRITES = 12
    """Files that a run of two epochs writes: settings, plan, summary, three checkpoints, and for each epoch metrics,
    curves and, if it is better than the one before, its weights; the last number is one too many."""

    @pytest.mark.parametrize("number", range(MOST_WRITES + 1))
    def test_at_every_write(self, whole, tmp_path, monkeypatch, capsys, number):
        """The disk is full as the file of that number is written; once there is room the run goes on as if nothing had
        happened."""
        settings, uninterrupted, writes = whole
        assert writes in (self.MOST_WRITES - 1, self.MOST_WRITES)
        out, real, written = tmp_path / "run", os.fsync, []

        def fsync(handle):
            written.append(handle)
            if len(written) == number + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(handle)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            code = main([*settings, "--out", str(out)])
        if number >= writes:
            assert (code, len(written)) == (0, writes)
            return
        assert code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "(No space left on device)" in line
        assert not out.exists() or not [path for path in out.iterdir() if path.name.startswith(".")]
        again = ["--resume", str(out)] if out.exists() else [*settings, "--out", str(out)]
        assert main(again) == 0
        assert_same_run(out, uninterrupted)


class TestNobodyListens:
    def test_a_reader_that_has_gone(self, monkeypatch):
        """As in `train --list | head -1`: printing ends, the command does not."""
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as gone:
            monkeypatch.setattr(sys, "stdout", gone)
            printer = Printer()
            for _ in range(3):
                printer.say("x" * 100_000)
            gone.flush()

    def test_no_standard_output(self, monkeypatch):
        monkeypatch.setattr(sys, "stdout", None)
        Printer().say("into the void")
        assert main(["--list"]) == 0

    def test_no_standard_error(self, monkeypatch):
        monkeypatch.setattr(sys, "stderr", None)
        assert main(["nonsense"]) == 2

    def test_the_log_goes_on(self, tmp_path, monkeypatch):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as gone:
            monkeypatch.setattr(sys, "stdout", gone)
            printer = Printer()
            with printer.logging_to(tmp_path / "log.txt"):
                printer.say("one" * 50_000)
                printer.say("two")
        assert (tmp_path / "log.txt").read_text().endswith("  two\n")


class TestDiverging:
    def test_the_first_checkpoint_stays(self, train, tmp_path):
        code, _, complaints = train("--epochs", 30, "--lr", "1e30", "--out", tmp_path / "run")
        assert code == 2
        assert len(complaints.splitlines()) == 1
        from stdl_engine import checkpoints

        _, state, _ = checkpoints.load_last(tmp_path / "run")
        assert all(value.isfinite().all() for value in state["rule"]["model"].values())
        assert re.search(r"became not finite in epoch \d+, batch \d+: lower --lr \(it is 1e\+30\); ", complaints)
        assert f"the last good checkpoint is kept in {tmp_path / 'run'}." in complaints
