"""Signals, at any moment: one sentence, the exit code that shells expect, and nothing lost that could be kept."""

import os
import signal
import threading

import pytest

from stdl_engine import plan as plan_command
from stdl_engine import train as train_command
from stdl_engine.data import event_folders
from stdl_engine.stopping import SIGNALS, Stopped, StopSignals

from .test_run import write_recordings


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
class TestSignals:
    def test_at_once(self, number):
        before = signal.getsignal(number)
        with pytest.raises(Stopped, match=f"stopped by {number.name}") as stopped, StopSignals():
            send(number)
        assert stopped.value.exit_code == 128 + number
        assert signal.getsignal(number) is before

    def test_deferred_and_the_second_at_once(self, number):
        with StopSignals() as stop, stop.deferred():
            send(number)
            assert stop.number == number
            with pytest.raises(Stopped):
                send(number)

    def test_a_worker_goes_when_its_parent_says_so(self, number):
        """A forked process has the handler too: SIGTERM ends it as ever, Ctrl-C, which every process of a terminal
        gets, leaves it to its parent while that is saving."""
        with StopSignals() as stop, stop.deferred():
            child = os.fork()
            if child == 0:
                send(number)
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == (0 if number == signal.SIGINT else -number)


def test_in_another_thread_signals_are_left_alone():
    before, inside = signal.getsignal(signal.SIGINT), []

    def work():
        with StopSignals():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("where", ["load_data", "Trainer"])
def test_while_a_run_is_prepared(train, tmp_path, monkeypatch, where, number):
    def signalled(*args, **options):
        send(number)

    monkeypatch.setattr(train_command, where, signalled)
    code, _, complaints = train("--epochs", 1, "--out", tmp_path / "run")
    assert code == 128 + number
    assert complaints == f"stdl_engine.train: stopped by {number.name}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_while_a_recording_is_read(train, tmp_path, monkeypatch, number):
    """A signal is no bad sample, not even where those are left out."""
    write_recordings(tmp_path / "camera")
    monkeypatch.setitem(event_folders.READERS, ".npy", lambda path, columns: send(number))
    own = ["--dataset", "event-folder", "--data", tmp_path / "camera", "--on-bad-sample", "skip"]
    code, _, complaints = train(*own, "--epochs", 1, "--out", tmp_path / "run")
    assert code == 128 + number
    assert complaints == f"stdl_engine.train: stopped by {number.name}\n"
    assert sorted(path.name for path in (tmp_path / "camera").iterdir()) == ["test", "train"]
    assert not (tmp_path / "run").exists()


def test_while_a_function_of_ones_own_runs(train, tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import os, signal\ndef load(): os.kill(os.getpid(), signal.SIGINT)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, complaints = train("--dataset", "slow_module:load", "--epochs", 1, "--out", tmp_path / "run")
    assert (code, complaints) == (130, "stdl_engine.train: stopped by SIGINT\n")


def test_while_planning(capsys, monkeypatch):
    monkeypatch.setattr(plan_command, "predict_peak", lambda *_: send(signal.SIGINT))
    for options in ([], ["--compare"], ["--fit", "1GB"]):
        assert plan_command.main(["digits", *options]) == 130
        assert "stopped by SIGINT" in capsys.readouterr().err


def test_when_readers_of_files_die_of_the_same_signal(train, tmp_path, monkeypatch):
    """Their death is no error then: the run saves and stops."""
    from stdl_engine.data import Batches

    original = Batches.epoch

    def epoch(self, number, skip=0):
        batches = original(self, number, skip)
        if not self.training:
            return batches

        def dying():
            yield next(batches)
            send(signal.SIGINT)
            raise RuntimeError("DataLoader worker (pid 1) exited unexpectedly")

        return dying()

    monkeypatch.setattr(Batches, "epoch", epoch)
    code, _, complaints = train("--epochs", 1, "--out", tmp_path / "run")
    assert code == 130
    assert complaints == f"stdl_engine.train: stopped by SIGINT: continue with --resume {tmp_path / 'run'}\n"
