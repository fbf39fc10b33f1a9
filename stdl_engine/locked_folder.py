"""A folder that one process at a time writes into: made for something new, or opened to go on with what is there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Self

from .atomic_files import remove_unfinished, write_atomically

LOCK = ".lock"
UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems answer that have no locks."""

_held: set[int] = set()


class LockedFolder:
    """A folder with a file of settings, by which it is known, and other files that are whole or not there."""

    settings_file: ClassVar[str]
    what: ClassVar[str]
    """What the folder holds, in a word."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextlib.contextmanager
    def create(cls, path: Path, say: Callable[[str], None]) -> Iterator[Self]:
        """A folder for something new, locked while in the context. If the settings are not written in it, whatever was
        made of the folder is removed again."""
        folder = cls(path)
        folder.refuse_if_taken()
        made: list[Path] = []
        try:
            with folder._writing():
                made += _make(path)
                stack = contextlib.ExitStack()
                stack.enter_context(_locked(path, say))
            with stack:
                folder.refuse_if_taken()  # by a process that has just ended
                remove_unfinished(path)
                yield folder
        finally:
            for parent in made:
                with contextlib.suppress(OSError):  # not empty: something was begun
                    parent.rmdir()

    @classmethod
    @contextlib.contextmanager
    def reopen(cls, path: Path, say: Callable[[str], None]) -> Iterator[Self]:
        """The folder of something that was begun, locked while in the context."""
        folder = cls.open(path)
        with contextlib.ExitStack() as stack:
            with folder._writing():
                stack.enter_context(_locked(path, say))
                remove_unfinished(path)
            yield folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """The folder of something that was begun, to read."""
        folder = cls(path)
        if not (path / cls.settings_file).is_file():
            raise ValueError(f"{path} is no folder of a {cls.what}: it has no {cls.settings_file}.")
        return folder

    def refuse_if_taken(self) -> None:
        """Reject a folder that holds something which would be lost."""
        if (self.path / self.settings_file).exists():
            raise ValueError(
                f"{self.path} holds a {self.what} already: go on with it by --resume {self.path}, or choose another "
                "--out."
            )

    def write(self, name: str, content: str | bytes) -> None:
        """One file of the folder."""
        with self._writing(name):
            write_atomically(self.path / name, content)

    @contextlib.contextmanager
    def _writing(self, name: str = "") -> Iterator[None]:
        """A context that says what could not be written, and why."""
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"cannot write to {self.path / name} ({error.strerror}): make room or choose another folder by --out."
            ) from error


def _make(path: Path) -> list[Path]:
    """Make a folder and those that it is in; gives the ones that were not there, the innermost first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


@contextlib.contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """A context in which this process alone has the folder; if another has it, ValueError.

    The lock goes with the process, however it ends: a file that a killed one has left behind locks nothing.
    """
    path = folder / LOCK
    handle = _acquire(path, say)
    _held.add(handle)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # before the lock is given up, so that no other process loses its own
        _held.discard(handle)
        os.close(handle)


def _acquire(path: Path, say: Callable[[str], None]) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(handle, 20).decode(errors="replace").strip()
            os.close(handle)
            who = f"process {owner}" if owner.isdigit() else "another process"
            raise ValueError(
                f"{path.parent} is being written by {who}: wait until it has ended, or choose another folder."
            ) from error
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                os.close(handle)
                raise
            say(f"{path.parent} cannot be locked ({error.strerror}): see to it that no other process writes there.")
        if _is_still_there(path, handle):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            return handle
        os.close(handle)  # the one before removed the file as this one opened it: lock the new one


def _is_still_there(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _let_go_in_child() -> None:
    """A worker process that outlives a killed parent for some seconds must not keep the folder from the next run."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
