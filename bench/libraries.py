"""Whether a library is installed, and the sentence for one that is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util


def missing(package: str) -> str:
    """What to do about a library that is not installed; empty if it is."""
    if importlib.util.find_spec(package) is not None:
        return ""
    return f"{package} is not installed: pip install 'stdl-engine[bench]'"


def version(package: str) -> str:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
