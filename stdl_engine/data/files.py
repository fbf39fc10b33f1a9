"""Finding the files of a dataset, and saying what is missing."""

from __future__ import annotations

import hashlib
import json
import os
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


def list_folder(folder: Path) -> list[Path]:
    """The contents of a folder, sorted by name."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise OSError(
            f"the folder {folder} cannot be read ({error.strerror}): let this user read it, or move it out of the data."
        ) from error


def walk(folder: Path, extension: str, above: tuple[Path, ...] = ()) -> list[Path]:
    """Every file of this kind in a folder and its subfolders, sorted by name."""
    place = folder.resolve()
    if place in above:
        raise ValueError(f"the link {folder} leads back to a folder that it is in: remove it.")
    files: list[Path] = []
    for path in list_folder(folder):
        if path.is_dir():
            files += walk(path, extension, (*above, place))
        elif path.name.endswith(extension):
            files.append(path)
    return files


def class_folders(split: Path) -> list[str]:
    """The names of the folders in a split."""
    found = list_folder(split)
    for path in found:
        if path.is_symlink() and not path.exists():
            raise ValueError(f"the link {path} leads nowhere: repair it or remove it.")
    return [path.name for path in found if path.is_dir()]


def own_splits(root: Path, samples: str) -> tuple[Path, Path, list[str]]:
    """The folders that hold a user's own training and test samples, and the names of the classes."""
    if not (root / "train").is_dir():
        raise FileNotFoundError(
            f"there is no folder {root / 'train'}: put {samples} in {root}/train/<class>/ and {root}/test/<class>/."
        )
    test = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    if test is None:
        raise FileNotFoundError(
            f"there is no folder {root / 'test'} or {root / 'val'}: put {samples} to test on there."
        )
    classes = class_folders(root / "train")
    if len(classes) == 1:
        raise ValueError(
            f"the folder {root / 'train'} has the single class {classes[0]!r}: a network needs two or more to tell "
            "apart, each in its own folder."
        )
    return root / "train", test, classes


def list_files(split: Path, classes: Sequence[str], extensions: tuple[str, ...]) -> Files:
    """Every file split/<class>/* of these kinds with the number of its class, sorted by name."""
    if not classes:
        raise ValueError(f"the folder {split} has no class folders: put samples in {split}/<class>/.")
    unknown = [name for name in class_folders(split) if name not in classes]
    if unknown:
        raise ValueError(
            f"the folder {split} has a folder {unknown[0]!r}, which is none of the {len(classes)} classes: remove it "
            "or add the class to the training set."
        )
    files: list[tuple[Path, int]] = []
    for label, name in enumerate(classes):
        members = list_folder(split / name) if (split / name).is_dir() else []
        members = [path for path in members if path.name.lower().endswith(extensions) and _is_sample(path)]
        if not members:
            kinds = ", ".join(extensions)
            raise ValueError(f"the folder {split / name} has no samples: put files in it that end in {kinds}.")
        files += [(path, label) for path in members]
    return files


def _is_sample(path: Path) -> bool:
    """Whether it is a file, or a link that leads nowhere: that is a sample that cannot be read, and must not be
    ignored.
    """
    return path.is_file() or (path.is_symlink() and not path.exists())


def require_same_classes(root: Path, train: Sequence[str], test: Sequence[str]) -> None:
    """Raise if a class folder exists in only one of two splits."""
    alone = sorted(set(train) ^ set(test))
    if alone:
        raise ValueError(
            f"{root} has the class {alone[0]!r} in only one of its two splits: both need the same folders."
        )


def state_of(paths: Iterable[Path], root: Path) -> str:
    """Changes when one of these files is added, removed, renamed or written."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            status = path.stat()
            state = f"{status.st_size}\0{status.st_mtime_ns}"
        except OSError as error:  # the reader of the file decides what that means
            state = str(error.errno)
        digest.update(os.fsencode(path.relative_to(root)) + f"\0{state}\n".encode())
    return digest.hexdigest()


def write_sealed(path: Path, content: dict) -> None:
    """Write a note for later runs, all of it or nothing, with a checksum that reveals any change."""
    write_atomically(path, json.dumps({**content, "seal": _seal(content)}))


def read_sealed(path: Path, expected: dict) -> dict | None:
    """What `write_sealed` wrote, if it says what is expected; None if it is missing, damaged or was edited."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.pop("seal", None) != _seal(content):
        return None
    return content if all(content.get(name) == value for name, value in expected.items()) else None


def _seal(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
