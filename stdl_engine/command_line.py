"""What all commands share: options override a config file, which overrides a recipe; every error is one sentence."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tomllib
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import tyro

from .extras import MissingExtra
from .planning.budgets import format_bytes
from .recipes import Recipe, by_names_of_today, check_names
from .settings import SettingError, checked
from .stopping import Stopped, StopSignals
from .unread_output import ending_quietly, flush

Options = TypeVar("Options")
_SETTINGS = {field.name for field in fields(Recipe)}

EXPECTED = (ValueError, TypeError, OSError, ArithmeticError, MissingExtra)
"""Errors whose message is a sentence about what is wrong with a request, or with the machine."""

MEMORY_ERRORS = re.compile(
    r"can't allocate memory|not enough memory|out of memory|Cannot allocate memory|[Oo]verflow|Dimension size must be"
)
"""What PyTorch's errors say about tensors that are too large for this machine, or for any."""


def run_command(name: str, command: Callable[[list[str], StopSignals], None], arguments: list[str] | None) -> int:
    """Run a command on its arguments and return its exit code: 0; 2 after a sentence about what is wrong; 128 and the
    signal's number if one stopped it."""
    arguments = sys.argv[1:] if arguments is None else [str(argument) for argument in arguments]
    try:
        with StopSignals() as stop:
            command(arguments, stop)
    except Stopped as error:
        return complain(name, str(error), error.exit_code)
    except EXPECTED as error:
        return complain(name, sentence_of(error))
    except (RuntimeError, MemoryError) as error:
        if (sentence := out_of_memory(error)) is None:
            raise
        return complain(name, sentence)
    finally:
        flush(sys.stdout)
    return 0


def complain(name: str, sentence: str, code: int = 2) -> int:
    """Print one line to standard error, if there is one."""
    if sys.stderr is None:
        return code
    with contextlib.suppress(OSError):  # nobody is reading
        print(f"stdl_engine.{name}: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def sentence_of(error: Exception) -> str:
    """An error as a sentence for a user of the command line."""
    if isinstance(error, SettingError):
        return error.as_option()
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename} cannot be used" if error.filename else "a file or stream cannot be used"
        return f"{place} ({error.strerror})."
    return str(error) or type(error).__name__


def out_of_memory(error: BaseException) -> str | None:
    """The sentence for an error that means too little memory; None for any other error."""
    if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not MEMORY_ERRORS.search(str(error)):
        return None
    wanted = re.search(r"allocate (\d+) bytes", str(error))
    amount = f" ({format_bytes(int(wanted[1]))} more were asked for)" if wanted else ""
    return (
        f"out of memory{amount}: lower --batch-size, --width or --steps, or let the rule stdl keep to a --budget in "
        "bytes; stdl_engine.plan says what a training step needs."
    )


def parse(
    kind: type[Options], defaults: Options | None, arguments: Sequence[str], prog: str, description: str
) -> Options:
    """The options on a command line; what cannot be read raises ValueError, --help prints and exits."""
    said = io.StringIO()
    settings: dict[str, Any] = {} if defaults is None else {"default": defaults}
    somewhere = contextlib.redirect_stdout(io.StringIO() if sys.stdout is None else sys.stdout)
    try:
        with contextlib.redirect_stderr(said), somewhere, ending_quietly():
            return _checked(tyro.cli(kind, args=arguments, prog=prog, description=description, **settings))
        sys.exit(0)  # nobody has read the help to its end
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise ValueError(f"{_without_box(said.getvalue())} (--help lists the options).") from None


def _checked(options: Options) -> Options:
    """Options whose own numbers are within their limits; the recipe among them checks itself when it is made."""
    hints = typing.get_type_hints(type(options), include_extras=True)
    limited = [name for name in hints if name not in _SETTINGS and typing.get_origin(hints[name]) is Annotated]
    checked(type(options), {name: getattr(options, name) for name in limited})
    return options


def _without_box(text: str) -> str:
    """What tyro prints in a box, as one line, with the option that it suggests. The box is drawn in lines, or in dashes
    where stdout is not UTF-8."""
    lines = [line.strip(" │╭╮╰╯") for line in text.splitlines()]
    _, *inside = [line for line in lines if line] or [""]  # the title
    sections = "\n".join("\0" if not line.strip("─-") else line for line in inside).split("\0")
    said = next((" ".join(section.split()) for section in sections if section.strip()), "the options cannot be read")
    said = re.sub(r"no type matching (\S+) could be instantiated from \[(.+?)\]\. .*", r"\2 is none of \1", said)
    meant = re.search(r"Perhaps you meant:\s+(--[\w-]+)", "\n".join(lines))
    return f"{said.rstrip('.')}, perhaps you meant {meant[1]}" if meant else said.rstrip(".")


def given(arguments: Sequence[str]) -> set[str]:
    """The names of the options on a command line, as fields have them."""
    names = {token.partition("=")[0][2:].replace("-", "_") for token in arguments if token.startswith("--")}
    return {name.removeprefix("no_") for name in names}


def with_config(recipe: Recipe, arguments: Sequence[str]) -> tuple[dict[str, Any], set[str]]:
    """The settings of a recipe, overridden by those of the file that --config names, and the names of the latter."""
    settings = vars(recipe)
    path = config_path(arguments)
    changes = read_config(path) if path is not None else {}
    return settings | changes, set(changes)


def config_path(arguments: Sequence[str]) -> Path | None:
    """The last file that --config names."""
    path = last_value("--config", arguments)
    return None if path is None else Path(path)


def last_value(option: str, arguments: Sequence[str]) -> str | None:
    """The value of an option where it is written last, before the rest of the command line is parsed."""
    value = None
    for place, token in enumerate(arguments):
        name, equals, word = token.partition("=")
        if name == option and (equals or place + 1 < len(arguments)):
            value = word if equals else arguments[place + 1]
    return value


def read_config(path: Path) -> dict[str, Any]:
    """Settings of a recipe from a file: TOML, or JSON as a run's config.json."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ValueError(f"cannot read the config {path} ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise ValueError(f"the config {path} is not {kind} ({error}): write a setting by its name.") from error
    if not isinstance(values, dict):
        raise ValueError(f"the config {path} holds a {type(values).__name__}: it must hold settings by name.")
    try:
        values = by_names_of_today(values)
        check_names(values)
        return checked(Recipe, values)
    except ValueError as error:
        raise ValueError(f"the config {path}: {error}") from error


def recipe_in(options: Recipe) -> Recipe:
    """The recipe in the options of a command that takes a recipe's settings and more."""
    return Recipe(**{field.name: getattr(options, field.name) for field in fields(Recipe)})
