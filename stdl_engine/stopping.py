"""Signals that ask a command to stop: at once if nothing would be lost, otherwise at the next safe moment."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal has stopped the command; `exit_code` is what a shell expects then.

    It is not an `Exception`, because readers of data take every one of those for a bad sample.
    """

    def __init__(self, number: int, then: str = "") -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}{then}")
        self.exit_code = 128 + number


class StopSignals:
    """In this context a signal raises `Stopped`, or inside `deferred` is noted in `number`; a second signal always
    raises.

    Outside the main thread, where Python handles no signals, nothing changes.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.patient = False
        """Whether further signals are ignored while stopping is deferred: torchrun passes a signal on to every rank,
        even if a terminal has already sent it to all of them."""
        self._deferring = False
        self._process = os.getpid()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """A context for code that checks `number` itself, whenever it can stop without losing anything."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            self._on_signal_in_worker(number)
        elif self._deferring and (self.number is None or self.patient):
            self.number = self.number or number
        else:
            raise Stopped(number)

    def _on_signal_in_worker(self, number: int) -> None:
        """In a process forked to read data, which inherits this handler: it ends when its parent tells it to."""
        if number != signal.SIGINT or not self._deferring:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
