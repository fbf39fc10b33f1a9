"""Checkpoints: whole or not there, checked when read, and the one before kept in case the last is damaged.

A checkpoint's name ends in the hash of its content (`checkpoint-000004-1f0c….pt`), so a file cut short or changed is
recognised before anything of it is used, and it is read by `torch.load(weights_only=True)`, which runs no code.
"""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path
from typing import Any

import torch

from .files import write_atomically

KEPT = 2
"""How many checkpoints are kept, the last ones."""
DIGITS = 16
"""Hexadecimal digits of the hash in a name."""
NAME = re.compile(rf"checkpoint-(\d+)-([0-9a-f]{{{DIGITS}}})\.pt")


class CheckpointError(ValueError):
    """A file that is no checkpoint, or no longer."""


def save(folder: Path, batches: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint after so many batches and remove all but the last few."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"checkpoint-{batches:06d}-{digest(content)}.pt"
    write_atomically(path, content)
    for old in saved(folder)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def saved(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    found = [
        (int(match[1]), path.stat().st_mtime_ns, path)
        for path in folder.iterdir()
        if (match := NAME.fullmatch(path.name))
    ]
    return [path for *_, path in sorted(found)]


def load(path: Path) -> dict[str, Any]:
    """What was saved; raises CheckpointError if the file is not what was written."""
    name = NAME.fullmatch(path.name)
    if name is None:
        raise CheckpointError(f"{path} is no checkpoint of a run: its name should be checkpoint-BATCHES-HASH.pt.")
    content = path.read_bytes()
    if digest(content) != name[2]:
        raise CheckpointError(f"the checkpoint {path} is damaged: its content does not match the hash in its name.")
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:  # whatever unpickling meets in a file that is not ours
        raise CheckpointError(f"{path} is no checkpoint: it holds other things than tensors and numbers.") from error
    if not isinstance(state, dict) or "rule" not in state:
        raise CheckpointError(f"{path} is no checkpoint of a run: it lacks the rule's state.")
    return state


def load_last(folder: Path) -> tuple[Path, dict[str, Any], list[str]]:
    """The last checkpoint that is whole, its state, and what is wrong with those after it."""
    problems: list[str] = []
    paths = saved(folder) if folder.is_dir() else []
    for path in reversed(paths):
        try:
            return path, load(path), problems
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(" ".join([*problems, "There is no earlier one: start the run again."]))
    raise CheckpointError(f"{folder} has no checkpoint: pass the folder of a run that has finished an epoch.")


def digest(content: bytes) -> str:
    """The start of the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]
