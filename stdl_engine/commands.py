"""The commands that pip installs: the same as `python -m stdl_engine.train`, `.plan`, `.evaluate` and
`.report`."""

from __future__ import annotations

import importlib
import sys

from .extras import MissingExtra


def train() -> int:
    return _run("train")


def plan() -> int:
    return _run("plan")


def evaluate() -> int:
    return _run("evaluate")


def report() -> int:
    return _run("report")


def _run(name: str) -> int:
    try:
        command = importlib.import_module(f".{name}", __package__)
    except MissingExtra as error:
        print(f"stdl-{name}: {error}", file=sys.stderr)
        return 2
    return command.main()
