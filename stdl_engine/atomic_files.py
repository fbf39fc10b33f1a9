"""Files that are complete or absent: written beside their place and renamed into it."""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
from pathlib import Path

UNFINISHED = ".part"
"""How the name of a file ends while it is being written."""
RANDOM = 8
"""The number of random characters that `tempfile` puts before that."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace a file's content completely or not at all, whatever happens meanwhile."""
    content = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def remove_unfinished(folder: Path, name: str | None = None) -> None:
    """Remove what killed writers left in a folder, of the file with this name or of all files. Call it only if no
    process can be writing now."""
    of = "*" if name is None else glob.escape(name)
    for path in folder.glob(f".{of}.{'?' * RANDOM}{UNFINISHED}"):
        path.unlink(missing_ok=True)
