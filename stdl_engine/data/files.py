"""Finding the files of a dataset, and saying what is missing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..atomic_files import write_atomically

Files = Sequence[tuple[Path, int]]
"""Paths of samples and their labels."""


def find_home(root: Path, name: str, part: str) -> Path:
    """The dataset's own folder in root, or root itself if that is where its parts are."""
    return root if (root / part).exists() else root / name


def require(root: Path, parts: list[str], name: str, page: str, contents: str) -> None:
    """Say where a dataset was looked for and where to get it, unless all its parts are there."""
    missing = [part for part in parts if not (root / part).exists()]
    if missing:
        raise FileNotFoundError(
            f"{name} is not in {root}, which lacks {' and '.join(missing)}: get it from {page} and put {contents} "
            "there."
        )


def list_files(split: Path, classes: Sequence[str], extensions: tuple[str, ...]) -> Files:
    """Every file split/<class>/* of these kinds with the number of its class, in the order of their names."""
    if not classes:
        raise ValueError(f"the folder {split} has no class folders: put samples in {split}/<class>/.")
    found = sorted(path.name for path in split.iterdir() if path.is_dir())
    unknown = [name for name in found if name not in classes]
    if unknown:
        raise ValueError(
            f"the folder {split} has a folder {unknown[0]!r}, which is none of the {len(classes)} classes: remove it "
            "or add the class to the training set."
        )
    files: list[tuple[Path, int]] = []
    for label, name in enumerate(classes):
        members = sorted(split.joinpath(name).glob("*"))
        members = [path for path in members if path.name.lower().endswith(extensions) and path.is_file()]
        if not members:
            kinds = ", ".join(extensions)
            raise ValueError(f"the folder {split / name} has no samples: put files in it that end in {kinds}.")
        files += [(path, label) for path in members]
    return files


def require_same_classes(root: Path, train: Sequence[str], test: Sequence[str]) -> None:
    """Name a class folder that only one of two splits has."""
    alone = sorted(set(train) ^ set(test))
    if alone:
        raise ValueError(
            f"{root} has the class {alone[0]!r} in only one of its two splits: both need the same folders."
        )


def fingerprint(paths: Iterable[Path], root: Path) -> str:
    """Changes when one of these files is added, removed, renamed or written."""
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        digest.update(f"{path.relative_to(root)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def write_json(path: Path, content: dict) -> None:
    """All of the file or none of it."""
    write_atomically(path, json.dumps(content))


def read_json(path: Path) -> dict:
    """The content of the file, nothing if it is missing or damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
