"""Files that are whole or not there: written beside their place and renamed into it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

UNFINISHED = ".part"
"""How the name of a file ends while it is being written."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace a file's content, all of it or none, whatever happens meanwhile."""
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


def remove_unfinished(folder: Path) -> None:
    """Remove what writers that were killed have left in a folder, in which nobody may be writing now."""
    for path in folder.glob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)
