"""A test that dies or hangs ends the run in bounded time, by name: tiny projects under this project's own settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

BAD = """
import ctypes, os, time

def wait_for_ever(library):
    mutex = ctypes.create_string_buffer(256)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)

def test_first():
    pass

def test_aborts():
    os.abort()

def test_hangs_in_python():
    while True:
        time.sleep(0.1)

def test_hangs_in_compiled_code():
    wait_for_ever(ctypes.CDLL(None))

def test_hangs_with_the_interpreter_locked():
    wait_for_ever(ctypes.PyDLL(None))

def test_last():
    pass
"""


class Run(NamedTuple):
    code: int
    output: str
    seconds: float


def run(folder: Path, tests: str, *options: str, watchdog: tuple[str, ...] = ()) -> Run:
    """Run pytest on these tests, with the project's settings and much shorter limits."""
    (folder / "test_tiny.py").write_text(tests)
    settings = ["-c", ROOT / "pyproject.toml", "--rootdir", folder, "-p", "no:cacheprovider", "-p", "tests.unfinished"]
    limits = ["-o", "timeout=1", "-o", "faulthandler_timeout=3"]
    command = [*watchdog, sys.executable, "-m", "pytest", *settings, *limits, *options, folder]
    start = time.monotonic()
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=200, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    return Run(done.returncode, done.stdout + done.stderr, time.monotonic() - start)


def from_makefile(variable: str) -> list[str]:
    (value,) = re.findall(rf"^{variable} := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return value.split()


def in_parallel(workers: int = 2) -> list[str]:
    """How `make test` spreads tests, with that many workers."""
    options = from_makefile("PARALLEL")
    options[options.index("--numprocesses") + 1] = str(workers)
    return options


def test_side_by_side_each_is_named_and_the_others_run(tmp_path):
    result = run(tmp_path, BAD, *in_parallel())
    assert result.code == 1
    assert "4 failed, 2 passed" in result.output, result.output
    for name in ("aborts", "hangs_in_compiled_code", "hangs_with_the_interpreter_locked"):
        assert f"crashed while running 'test_tiny.py::test_{name}'" in result.output
    assert "FAILED test_tiny.py::test_hangs_in_python - Failed: Timeout (>1.0s)" in result.output
    assert "UNFINISHED" not in result.output


def test_where_every_test_kills_its_worker_the_run_gives_up(tmp_path):
    tests = "import os, pytest\n@pytest.mark.parametrize('i', range(50))\ndef test_aborts(i):\n    os.abort()\n"
    result = run(tmp_path, tests, *in_parallel())
    assert result.code != 0
    crashes = re.findall(
        r"^worker 'gw\d+' crashed while running 'test_tiny.py::test_aborts\[\d+\]'", result.output, re.M
    )
    assert 5 <= len(crashes) <= 7, result.output  # four restarts, and two workers that may both die before the end


@pytest.mark.parametrize("name", ["aborts", "hangs_in_compiled_code", "hangs_with_the_interpreter_locked"])
def test_in_one_process_the_traceback_names_it(tmp_path, name):
    result = run(tmp_path, BAD, "-k", name)
    assert result.code not in (0, 5)
    assert re.search(rf"test_tiny\.py\", line \d+ in test_{name}\n", result.output), result.output


def test_the_watchdog_ends_a_run_that_its_limits_do_not(tmp_path):
    tests = "import time\ndef test_fails():\n    assert not 1\ndef test_is_long():\n    time.sleep(1000)\n"
    watchdog = (*from_makefile("WATCHDOG"), "8")
    no_limits = ("-o", "timeout=0", "-o", "faulthandler_timeout=0")
    result = run(tmp_path, tests, *no_limits, *in_parallel(), watchdog=watchdog)
    assert result.code == 124, result.output
    assert result.seconds < 60
    assert "FAILED test_tiny.py::test_fails" in result.output
    assert "UNFINISHED test_tiny.py::test_is_long" in result.output


def test_every_run_of_the_tests_is_watched():
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "-m pytest" in line]
    assert lines
    assert all("$(WATCHDOG)" in line or "--benchmark-only" in line for line in lines), lines
