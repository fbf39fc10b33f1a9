"""Settings that check themselves: each field of a dataclass against its type, its limits and its choices.

A field says what it may be where it is declared, `steps: Annotated[int, Between(1, 10_000)]`, and the dataclass calls
`check_fields` when it is made. An error is one sentence, whether the value came from Python, from a file or from the
command line.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal


class SettingError(ValueError):
    """An impossible setting; `setting` is the name of its field."""

    def __init__(self, setting: str, sentence: str) -> None:
        super().__init__(sentence)
        self.setting = setting

    def as_option(self) -> str:
        """The sentence for a user of the command line, where the setting is an option."""
        sentence = str(self)
        if not sentence.startswith(f"{self.setting} "):
            return sentence
        return f"--{self.setting.replace('_', '-')}{sentence.removeprefix(self.setting)}"


@dataclass(frozen=True)
class Between:
    """Limits of a number, both inclusive."""

    least: float
    most: float

    def problem(self, value: float) -> str | None:
        if math.isnan(value):
            return f"it must be a number from {_number(self.least)} to {_number(self.most)}"
        if value < self.least:
            return f"it must be {_number(self.least)} or more"
        return f"it must be {_number(self.most)} or less" if value > self.most else None


class OneOf:
    """The names that a setting may have."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)


class OneOfOrOwn(OneOf):
    """The same, or a user's own function, "package.module:function"."""


def check_fields(settings: Any) -> None:
    """Check every field of a dataclass instance, even a frozen one, and convert each value to its field's own form."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    for name, value in checked(type(settings), values).items():
        object.__setattr__(settings, name, value)


def checked(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values for fields of a dataclass, each checked and converted to its field's own form."""
    hints = typing.get_type_hints(kind, include_extras=True)
    own = {name: _converted(value, hints[name]) for name, value in values.items()}
    for name, value in own.items():
        _check(name, value, hints[name])
    return own


def _converted(value: Any, hint: Any) -> Any:
    """A value in its field's own form, where JSON, TOML or Python write it differently."""
    kinds = _kinds(hint)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if float in kinds and number:
        return float(value) if isinstance(value, float) or abs(value) < 10**300 else math.copysign(math.inf, value)
    if str in kinds and number:
        return str(value)
    if Path in kinds and isinstance(value, str):
        return Path(value)
    if isinstance(value, list) and any(typing.get_origin(kind) is tuple for kind in kinds):
        return tuple(value)
    return value


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types that a field may have."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    return typing.get_args(hint) if typing.get_origin(hint) in (UnionType, typing.Union) else (hint,)


def _check(name: str, value: Any, hint: Any) -> None:
    kinds = _kinds(hint)
    if not any(_is_of(value, kind) for kind in kinds):
        wanted = " or ".join(_words(kind) for kind in kinds)
        raise SettingError(name, f"{name} is {value!r}: it must be {wanted}.")
    if value is None or typing.get_origin(hint) is not Annotated:
        return
    for limit in typing.get_args(hint)[1:]:
        if isinstance(limit, Between) and not isinstance(value, str):
            for number in value if isinstance(value, tuple) else (value,):
                if problem := limit.problem(number):
                    raise SettingError(name, f"{name} is {_shown(value)}: {problem}.")
        elif isinstance(limit, OneOf) and value not in limit.names:
            own = isinstance(limit, OneOfOrOwn)
            if not (own and ":" in value):
                more = ', or name a function of yours, "package.module:function"' if own else ""
                raise SettingError(name, f"unknown {name} {value!r}: choose from {', '.join(limit.names)}{more}.")


def _is_of(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin is Literal:
        return value in typing.get_args(kind)
    if origin is tuple:
        parts = typing.get_args(kind)
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_is_of, value, parts))
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value is None if kind is NoneType else isinstance(value, kind)


def _words(kind: Any) -> str:
    """A type in words, for a sentence."""
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return f"{len(typing.get_args(kind))} whole numbers"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return "left out" if kind is NoneType else names.get(kind, str(kind))


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}".replace("e+", "e")
