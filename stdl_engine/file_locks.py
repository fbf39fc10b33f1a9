"""A lock file that one process at a time holds, so that two of them do not write into the same folder.

The lock ends with the process, however it ends: a file that a killed process has left behind locks nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

NAME = ".lock"
"""The name of the lock file in the folder that it protects."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""The errors of a file system without locks."""

_held: set[int] = set()


class FileLock:
    """Held from the moment it is made until `release`.

    Attributes:
        alone: whether no other process can hold it; False on a file system without locks.
    """

    def __init__(self, folder: Path, when_taken: Callable[[str], None]) -> None:
        """If another process holds the lock, `when_taken` is called with the name of that process: it may raise;
        otherwise this process waits."""
        self.path = folder / NAME
        self._process = os.getpid()
        while True:
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self.alone = self._acquire(when_taken)
                if not self.alone or _is_at(self._handle, self.path):
                    os.ftruncate(self._handle, 0)
                    os.pwrite(self._handle, f"{self._process}\n".encode(), 0)
                    break
            except BaseException:
                os.close(self._handle)
                raise
            os.close(self._handle)  # the previous holder removed the file meanwhile: lock the new one
        _held.add(self._handle)

    def _acquire(self, when_taken: Callable[[str], None]) -> bool:
        try:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(self._handle, 20, 0).decode(errors="replace").strip()
                when_taken(f"process {owner}" if owner.isdigit() else "another process")
                fcntl.flock(self._handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return False
        return True

    def release(self) -> None:
        """Release the lock for the next process."""
        if os.getpid() != self._process:  # a fork of the holder, which let go when it started
            return
        with contextlib.suppress(OSError):
            self.path.unlink()  # removed before the lock is released: a process that waits for it notices
        _held.discard(self._handle)
        os.close(self._handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _let_go_in_child() -> None:
    """A worker that outlives its killed parent for some seconds must not keep the folder locked."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
