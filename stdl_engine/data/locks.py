"""One process at a time prepares a folder; the others wait for it and find the work done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from ..file_locks import FileLock


@contextmanager
def preparing(folder: Path, what: str) -> Iterator[bool]:
    """A lock that one process at a time holds for a folder, which must exist; yields whether no other can be at work.

    A process that dies releases it at once, and the next one may then clear away what it left. On a file system without
    locks every process continues, and the work is done more than once.
    """
    said: list[str] = []

    def wait(holder: str) -> None:
        if not said:
            said.append(f"waiting for {holder}, which prepares {what}")
            Console(stderr=True, soft_wrap=True).print(said[0], highlight=False, markup=False)

    try:
        lock = FileLock(folder, wait)
    except OSError as error:
        raise OSError(
            f"{what} cannot be prepared in {folder} ({error.strerror}): make that folder writable, or copy the data to "
            "one that is."
        ) from error
    try:
        yield lock.alone
    finally:
        lock.release()
