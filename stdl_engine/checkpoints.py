"""Checkpoints: complete or absent, checked when read, and the previous one kept in case the last is damaged.

A checkpoint's name ends in the hash of its content (`checkpoint-000004-1f0c….pt`), so a file that is incomplete or was
changed is recognised before any of it is used. It is read by `torch.load(weights_only=True)`, which runs no code. The
weights of the best epoch are kept the same way, as `best-000004-….pt`.
"""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path
from typing import Any

import torch

from .atomic_files import write_atomically

KEPT = 2
"""How many of the last checkpoints are kept."""
DIGITS = 16
"""Hexadecimal digits of the hash in a name."""
NAME = re.compile(rf"(checkpoint|best)-(\d+)-([0-9a-f]{{{DIGITS}}})\.pt")
CONTENT = {
    "best": {"config": dict, "rule": dict, "epoch": int},
    "checkpoint": {
        "config": dict, "rule": dict, "epoch": int, "data": str, "batch": int, "meter": dict, "rows": list,
        "peak_bytes": int, "rng": torch.Tensor, "cuda_rng": list,
    },
}  # fmt: skip
"""What the two kinds of files hold."""


class CheckpointError(ValueError):
    """A file that is not a valid checkpoint."""


def save(folder: Path, batches: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint after this many batches, and remove all but the last few."""
    path = _write(folder, "checkpoint", batches, state)
    *others, _ = saved(folder)
    for old in others:
        if old not in others[-KEPT + 1 :] or batches_of(old) == 0:
            old.unlink(missing_ok=True)
    return path


def save_best(folder: Path, batches: int, state: dict[str, Any]) -> Path:
    """Write the best weights so far, after this many batches, and remove the earlier ones."""
    path = _write(folder, "best", batches, state)
    for old in saved(folder, "best"):
        if old != path:
            old.unlink(missing_ok=True)
    return path


def _write(folder: Path, kind: str, batches: int, state: dict[str, Any]) -> Path:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"{kind}-{batches:06d}-{digest(content)}.pt"
    write_atomically(path, content)
    return path


def saved(folder: Path, kind: str = "checkpoint") -> list[Path]:
    """The checkpoints of a folder, or its best weights, oldest first."""
    entries = [
        (int(match[2]), path.stat().st_mtime_ns, path)
        for path in folder.iterdir()
        if (match := NAME.fullmatch(path.name)) and match[1] == kind
    ]
    return [path for *_, path in sorted(entries)]


def batches_of(path: Path) -> int:
    """After how many batches a checkpoint was written."""
    return int(_parts_of_name(path)[2])


def _parts_of_name(path: Path) -> re.Match[str]:
    name = NAME.fullmatch(path.name)
    if name is None:
        raise CheckpointError(f"{path} is no checkpoint of a run: its name should be checkpoint-BATCHES-HASH.pt.")
    return name


def load(path: Path) -> dict[str, Any]:
    """What was saved; raises CheckpointError if the file is not what was written."""
    name = _parts_of_name(path)
    content = path.read_bytes()
    if digest(content) != name[3]:
        raise CheckpointError(f"the checkpoint {path} is damaged: its content does not match the hash in its name.")
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:  # unpickling a file that is not ours may raise anything
        raise CheckpointError(f"{path} is no checkpoint: it holds other things than tensors and numbers.") from error
    wanted = CONTENT[name[1]]
    lacking = [
        key for key, kind in wanted.items() if not isinstance(state, dict) or not isinstance(state.get(key), kind)
    ]
    if not lacking and "model" not in state["rule"]:
        lacking = ["the network"]
    if lacking:
        raise CheckpointError(f"{path} is no checkpoint of a run: it lacks {', '.join(lacking)}.")
    return state


def load_last(folder: Path) -> tuple[Path, dict[str, Any], list[str]]:
    """The last valid checkpoint, its state, and what is wrong with those after it."""
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


def load_best(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The weights of the best epoch."""
    paths = saved(folder, "best")
    if not paths:
        raise CheckpointError(f"{folder} has no best weights: pass the folder of a run that has finished an epoch.")
    return paths[-1], load(paths[-1])


def digest(content: bytes) -> str:
    """The start of the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]
