"""Hooks of pytest that name the tests still running when a run is interrupted, by a user or by `make`'s watchdog."""

from __future__ import annotations

import pytest

_running: dict[str, None] = {}
"""In the order in which they began."""


def pytest_runtest_logstart(nodeid: str) -> None:
    _running[nodeid] = None


def pytest_runtest_logfinish(nodeid: str) -> None:
    _running.pop(nodeid, None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when not in ("setup", "call", "teardown"):  # pytest-xdist's report of a worker that died
        _running.pop(report.nodeid, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for nodeid in _running:
        terminalreporter.write_line(f"UNFINISHED {nodeid}", red=True)
