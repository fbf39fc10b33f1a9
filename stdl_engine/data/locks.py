"""One process at a time prepares a folder; the others wait for it and find the work done."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system answers that knows no locks."""


@contextmanager
def preparing(folder: Path, what: str) -> Iterator[bool]:
    """Held by one process at a time for a folder, which must exist; says whether no other can be at work.

    A process that dies lets go at once, and the next one may then clear away what it left. On a file system without
    locks everybody goes on, to do the work more than once.
    """
    path = folder / ".lock"
    handle, alone = _acquire(path, what)
    try:
        yield alone
    finally:
        if alone:
            path.unlink(missing_ok=True)  # while it is held: whoever waits for it notices that it is gone
        os.close(handle)


def _acquire(path: Path, what: str) -> tuple[int, bool]:
    said = False
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OSError(
                f"{what} cannot be prepared in {path.parent} ({error.strerror}): make that folder writable, or copy "
                "the data to one that is."
            ) from error
        try:
            if not _locked_at_once(handle):
                if not said:
                    _say(f"waiting for another process that prepares {what}")
                    said = True
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_at(handle, path):
                return handle, True
        except OSError as error:
            if error.errno in NO_LOCKS:
                return handle, False
            os.close(handle)
            raise
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the one who held it has finished and taken it away: begin again


def _locked_at_once(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _say(sentence: str) -> None:
    Console(stderr=True, soft_wrap=True).print(sentence, highlight=False, markup=False)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
