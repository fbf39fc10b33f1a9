"""Output that nobody reads any more, as in `doctor | head`: a command ends, and does not complain."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def ending_quietly() -> Iterator[None]:
    """A context in which printing to standard output, when its reader has gone away, ends the context without an error.

    What is still in the buffer is written at the end, because Python would complain about it when it exits.
    """
    try:
        yield
    except BrokenPipeError:
        discard(sys.stdout)
    finally:
        flush(sys.stdout)


def flush(stream: IO[str] | None) -> None:
    """Write what a stream has in its buffer, if it is there and has a reader."""
    if stream is None:  # Python sets a closed stream to None
        return
    try:
        stream.flush()
    except BrokenPipeError:
        discard(stream)


def discard(stream: IO[str]) -> None:
    """Send what a stream has in its buffer, and all that follows, to nowhere."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
