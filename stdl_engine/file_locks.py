"""A file that one process at a time holds, so that two of them do not write the same folder.

The lock goes with the process, however it ends: a file that a killed one has left behind locks nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

NAME = ".lock"
"""What such a file is called in the folder that it is for."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What a file system answers that knows no locks."""

_held: set[int] = set()


class FileLock:
    """Held from the moment it is made until `release`.

    Attributes:
        alone: whether no other process can hold it; False on a file system without locks, where everybody does.
    """

    def __init__(self, folder: Path, when_taken: Callable[[str], None]) -> None:
        """Where another process holds the lock, `when_taken` is called with a name for it: it may raise, and otherwise
        this process waits."""
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
            os.close(self._handle)  # the one before removed the file as this one opened it: lock the new one
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
        """Let the next one have it."""
        if os.getpid() != self._process:  # a fork of the holder, which let go when it began
            return
        with contextlib.suppress(OSError):
            self.path.unlink()  # before the lock is given up: whoever waits for it notices that it is gone
        _held.discard(self._handle)
        os.close(self._handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _let_go_in_child() -> None:
    """A worker process that outlives a killed parent for some seconds must not keep the folder from the next one."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
