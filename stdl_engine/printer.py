"""What a command prints: on the terminal, and with the time of day in the log of a run."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, RenderableType

from .unread_output import discard

WIDTH = 80
"""The number of columns where there is no terminal to ask, and in logs."""


class Printer:
    """Prints lines and tables, and writes them to a log too if there is one.

    A reader that has gone away, as in `train | head`, ends the printing and not the command.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        seen = stream is not None and stream.isatty()  # Python sets a closed stream to None
        self.console = _Console(stderr=stderr, width=None if seen else WIDTH)
        self._log: TextIO | None = None

    def say(self, text: str) -> None:
        """Print one line or several, without wrapping."""
        self._print(text, highlight=False, markup=False, soft_wrap=True)
        self.log(text)

    def show(self, table: RenderableType) -> None:
        """Print a table, or anything else that rich can draw."""
        self._print(table)
        if self._log is not None:
            page = io.StringIO()
            Console(file=page, width=WIDTH).print(table)
            self.log(page.getvalue().rstrip())

    def _print(self, what: RenderableType, **options: Any) -> None:
        try:
            self.console.print(what, **options)
        except BrokenPipeError:
            self.console.on_broken_pipe()

    def log(self, text: str) -> None:
        """Write a line to the log only."""
        if self._log is not None:
            for line in text.splitlines():
                self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    @contextlib.contextmanager
    def logging_to(self, path: Path) -> Iterator[None]:
        """A context in which everything is added to a log as well, line by line."""
        outer = self._log
        with path.open("a", encoding="utf-8", buffering=1) as self._log:
            try:
                yield
            finally:
                self._log = outer


class SilentPrinter(Printer):
    """Prints nothing: another process prints for this one."""

    def __init__(self) -> None:
        super().__init__()
        self.console = _Console(quiet=True)

    def log(self, text: str) -> None:
        pass

    @contextlib.contextmanager
    def logging_to(self, path: Path) -> Iterator[None]:
        yield


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Discard output from now on; rich itself would end the command."""
        discard(self.file)
