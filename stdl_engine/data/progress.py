"""A progress bar for conversions that take long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")


def progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items, with a bar on standard error while they last if that is a terminal."""
    console = Console(stderr=True)
    return iter(track(items, what, console=console, disable=not console.is_terminal, transient=True))
