"""A folder that one process at a time writes into: created for something new, or opened to continue what is there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Self

from .atomic_files import remove_unfinished, write_atomically
from .file_locks import FileLock


class LockedFolder:
    """A folder that is recognised by its file of settings, with other files that are complete or absent."""

    settings_file: ClassVar[str]
    what: ClassVar[str]
    """What the folder holds, in one word."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextlib.contextmanager
    def create(cls, path: Path, say: Callable[[str], None]) -> Iterator[Self]:
        """A folder for something new, locked while in the context. If the settings are not written inside, what was
        created of the folder is removed again."""
        folder = cls(path)
        folder.refuse_if_taken()
        made: list[Path] = []
        try:
            with folder._writing():
                made.extend(_make(path))
                stack = contextlib.ExitStack()
                stack.enter_context(_locked(path, say))
            with stack:
                folder.refuse_if_taken()  # removed by a process that has just ended
                remove_unfinished(path)
                yield folder
        finally:
            for parent in reversed(made):
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
        """The folder of something that was begun, for reading."""
        folder = cls(path)
        if not (path / cls.settings_file).is_file():
            raise ValueError(f"{path} is no folder of a {cls.what}: it has no {cls.settings_file}.")
        return folder

    def refuse_if_taken(self) -> None:
        """Reject a folder whose contents would be lost."""
        if (self.path / self.settings_file).exists():
            raise self.taken(self.what)

    def taken(self, by: str) -> ValueError:
        """The error for a folder that holds something already."""
        return ValueError(
            f"{self.path} holds a {by} already: continue it with --resume {self.path}, or choose another --out."
        )

    def write(self, name: str, content: str | bytes) -> None:
        """One file of the folder."""
        with self._writing(name):
            write_atomically(self.path / name, content)

    @contextlib.contextmanager
    def _writing(self, name: str = "") -> Iterator[None]:
        """A context in which an error says what could not be written, and why."""
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"cannot write to {self.path / name} ({error.strerror}): make room or choose another folder."
            ) from error


def _make(path: Path) -> Iterator[Path]:
    """Make a folder and its parents; yields each one as soon as it has been created."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        yield folder


@contextlib.contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """A context in which only this process has the folder; raises ValueError if another process has it."""

    def refuse(holder: str) -> None:
        raise ValueError(f"{folder} is being written by {holder}: wait until it has ended, or choose another folder.")

    lock = FileLock(folder, refuse)
    try:
        if not lock.alone:
            say(f"{folder} is on a file system without locks: make sure that no other process writes there.")
        yield
    finally:
        lock.release()
