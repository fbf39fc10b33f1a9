"""The core needs torch, triton, numpy and numba. Everything else that a module imports belongs to an extra."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import NoReturn

EXTRAS = {
    "train": ("torchvision", "spikingjelly", "sklearn", "h5py", "rich", "tyro", "tensorboard", "matplotlib", "PIL"),
    "convert": ("spikingjelly", "snntorch"),
    "events": ("lz4", "zstandard"),
    "bench": ("snntorch", "norse", "sinabs"),
}
"""Modules that each extra of pyproject.toml installs."""

PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow"}
"""The package name of a module for pip, where the two differ."""


class MissingExtra(ImportError):
    """A library of an extra that is not installed."""


@contextlib.contextmanager
def extra(name: str, command: str | None = None) -> Iterator[None]:
    """A context for imports of an extra's libraries: if one is missing, the error says what to install.

    For a module that is run as a command (`command` is its `__name__`) only that sentence is printed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS[name]:
            raise
        missing = MissingExtra(
            f"{PACKAGES.get(library, library)} is not installed: pip install 'stdl-engine[{name}]'.", name=library
        )
        _end(missing, command, error)
    except MissingExtra as missing:
        _end(missing, command, missing.__cause__)


def _end(missing: MissingExtra, command: str | None, cause: BaseException | None) -> NoReturn:
    if command == "__main__":
        print(missing, file=sys.stderr)
        sys.exit(2)
    raise missing from cause
