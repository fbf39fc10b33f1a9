"""A run that was stopped, killed or damaged goes on as if nothing had happened, or says why not."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from stdl_engine import checkpoints
from stdl_engine.train import main

from .conftest import QUICK
from .test_run import same


def state(folder):
    return checkpoints.load_last(folder)[1]


def assert_same_run(one, other):
    """Weights, auxiliary networks and momenta; and the same report."""
    a, b = state(one), state(other)
    assert same(a["rule"]["model"], b["rule"]["model"])
    for mine, theirs in zip(a["rule"]["auxiliary"], b["rule"]["auxiliary"], strict=True):
        assert same(mine, theirs)
    for mine, theirs in zip(a["rule"]["optimizers"], b["rule"]["optimizers"], strict=True):
        momenta, others = ([entry["momentum_buffer"] for entry in o["state"].values()] for o in (mine, theirs))
        assert all(torch.equal(m, n) for m, n in zip(momenta, others, strict=True))
        assert mine["param_groups"] == theirs["param_groups"]
    timeless = ("epoch", "train_loss", "train_accuracy", "test_accuracy", "samples", "lr", "peak_bytes")
    rows, others = ([[row[name] for name in timeless] for row in s["rows"]] for s in (a, b))
    assert rows == others


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Four epochs in one go, and where its data is."""
    from .conftest import write_data

    folder = tmp_path_factory.mktemp("whole")
    data = write_data(folder / "data.npz")
    assert main(["digits", *QUICK, "--data", str(data), "--epochs", "4", "--out", str(folder / "run")]) == 0
    return folder / "run", data


def start(data, out, *extra):
    command = [sys.executable, "-m", "stdl_engine.train", "digits", *QUICK, "--data", str(data), "--epochs", "4"]
    return subprocess.Popen([*command, "--out", str(out), *extra], stderr=subprocess.PIPE, text=True, env=slow())


def slow():
    """The same threads as here: sums of floats depend on them."""
    return {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}


def wait_for(test, process, seconds=120):
    end = time.monotonic() + seconds
    while not test():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.005)


def test_killed(whole, tmp_path):
    run, data = whole
    out = tmp_path / "run"
    process = start(data, out)
    wait_for(lambda: out.exists() and len(checkpoints.saved(out)) >= 2, process)
    process.kill()
    process.wait()
    assert state(out)["epoch"] >= 2
    assert main(["--resume", str(out)]) == 0
    assert_same_run(out, run)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 4
    assert json.loads((out / "summary.json").read_text())["epochs"] == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_within_an_epoch(whole, tmp_path, number, monkeypatch, capsys):
    """The signal comes while the third batch of the second epoch is trained."""
    from stdl_engine.trainer import Trainer

    run, data = whole
    trained = []
    original = Trainer._train

    def signalling(self, x, y):
        trained.append(len(y))
        if len(trained) == 7:
            os.kill(os.getpid(), number)
        return original(self, x, y)

    monkeypatch.setattr(Trainer, "_train", signalling)
    out = str(tmp_path / "run")
    before = signal.getsignal(number)
    assert main(["digits", *QUICK, "--data", str(data), "--epochs", "4", "--out", out]) == 128 + number
    assert signal.getsignal(number) is before
    assert f"--resume {out}" in capsys.readouterr().err
    assert (state(tmp_path / "run")["epoch"], state(tmp_path / "run")["batch"]) == (1, 3)
    assert main(["--resume", out]) == 0
    assert len(trained) == 16
    assert_same_run(tmp_path / "run", run)


def test_finished(whole, capsys):
    run, _ = whole
    before = state(run)
    assert main(["--resume", str(run)]) == 0
    assert same(before["rule"]["model"], state(run)["rule"]["model"])


class TestDamage:
    @pytest.fixture
    def run(self, whole, tmp_path):
        """A copy, to spoil."""
        return shutil.copytree(whole[0], tmp_path / "run")

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda content: content[: len(content) // 2],
            lambda content: content[:1000] + bytes([content[1000] ^ 1]) + content[1001:],
            lambda content: b"",
        ],
        ids=["cut short", "one bit", "empty"],
    )
    def test_the_one_before_is_used(self, run, spoil, capsys):
        last = checkpoints.saved(run)[-1]
        last.write_bytes(spoil(last.read_bytes()))
        assert main(["--resume", str(run)]) == 0
        printed = capsys.readouterr().out
        assert f"the checkpoint {last} is damaged" in printed
        assert "continuing after epoch 3" in printed

    def test_none_is_left(self, run, capsys):
        for path in checkpoints.saved(run):
            path.write_bytes(b"something else")
        assert main(["--resume", str(run)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "is damaged" in line
        assert "start the run again" in line

    def test_no_code_is_run(self, run, tmp_path, capsys):
        """A file with the right hash that would run something on unpickling."""
        import pickle

        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {tmp_path / 'evil'}",)

        for path in checkpoints.saved(run):
            path.unlink()
        content = pickle.dumps(Evil())
        (run / f"checkpoint-000099-{checkpoints.digest(content)}.pt").write_bytes(content)
        assert main(["--resume", str(run)]) == 2
        assert not (tmp_path / "evil").exists()
        assert "is no checkpoint" in capsys.readouterr().err

    def test_another_networks(self, run, train, tmp_path, capsys):
        train("--epochs", 1, "--width", 0.125, "--out", tmp_path / "other")
        for path in checkpoints.saved(run):
            path.unlink()
        (path,) = checkpoints.saved(tmp_path / "other")
        path.rename(run / path.name)
        capsys.readouterr()
        assert main(["--resume", str(run)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1

    def test_a_full_disk_leaves_the_last_good_one(self, monkeypatch, train, tmp_path):
        import errno

        written = []

        def write(path, content):
            written.append(path)
            if len([path for path in written if path.name.startswith("checkpoint")]) == 3:  # that of the second epoch
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            path.write_bytes(content)

        monkeypatch.setattr(checkpoints, "write_atomically", write)
        out = tmp_path / "full"
        code, _, complaints = train("--epochs", 3, "--out", out)
        assert code == 2
        assert re.search(r"cannot write a checkpoint to .* \(No space left on device\): make room", complaints)
        assert state(out)["epoch"] == 1

    def test_metrics_ahead_of_the_checkpoint_are_measured_again(self, run):
        checkpoints.saved(run)[-1].unlink()
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 4
        assert main(["--resume", str(run)]) == 0
        epochs = [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert epochs == [1, 2, 3, 4]
