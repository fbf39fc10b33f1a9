"""`COMMAND | head`: a command whose output nobody reads any more ends without a word about it."""

import contextlib
import os

import pytest

from bench import __main__ as bench
from stdl_engine import doctor, evaluate, plan, report, train
from stdl_engine.kernels import inspect

LINE, LARGE = 1, 1 << 20
"""Buffers of standard output: one that is written with every line, and one that is written at the end."""

pytestmark = pytest.mark.parametrize("buffering", [LINE, LARGE], ids=["while printing", "at the end"])


@contextlib.contextmanager
def unread(buffering):
    """A context in which standard output has no reader. What is left in its buffer raises at the end."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=buffering) as stream, contextlib.redirect_stdout(stream):
        yield


@pytest.mark.parametrize("command", [train, plan, evaluate, report, inspect, bench], ids=lambda module: module.__name__)
def test_help(command, buffering, capfd):
    with pytest.raises(SystemExit) as ended, unread(buffering):
        command.main(["--help"])
    assert not ended.value.code
    assert capfd.readouterr().err == ""


def test_doctor(buffering, monkeypatch, capfd):
    monkeypatch.setattr(doctor, "checks", lambda: [("a kernel", lambda: 0.0)])
    with unread(buffering):
        assert doctor.main() == 0
    assert capfd.readouterr().err == ""


def test_json(buffering, monkeypatch, capfd):
    monkeypatch.setattr(inspect.dispatch, "interpreting", lambda: False)
    monkeypatch.setattr(inspect, "inspect_kernels", lambda *_: [{"kernel": "lif"}])
    with unread(buffering):
        inspect.main(["--json"])
    assert capfd.readouterr().err == ""


def test_other_broken_pipes_are_not_hidden(buffering, monkeypatch, capsys):
    """Whether or not somebody reads standard output."""

    def fail(*_):
        raise BrokenPipeError(32, "Broken pipe", "/data/fifo")

    monkeypatch.setattr(plan, "predict_peak", fail)
    with unread(buffering):
        assert plan.main(["digits"]) == 2
    assert capsys.readouterr().err == "stdl_engine.plan: /data/fifo cannot be used (Broken pipe).\n"
