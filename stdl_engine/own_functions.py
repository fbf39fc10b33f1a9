"""A user's own functions that a recipe names, "package.module:function": found, called, and their errors reported.

The module is looked for in the current folder and then wherever Python looks.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def call_own(reference: str, **offered: Any) -> Any:
    """Call the function that `reference` names, with those of the keyword arguments that it takes."""
    function, wanted = find_own(reference), parameters_of(reference)
    for parameter in wanted or ():
        if parameter.default is parameter.empty and parameter.name not in offered and not _gathers(parameter):
            raise ValueError(
                f"{reference} needs {parameter.name!r}, and is offered {', '.join(offered)}: give it a default value."
            )
    taken = {name: value for name, value in offered.items() if takes(wanted, name)}
    try:
        return function(**taken)
    except (Exception, SystemExit) as error:  # a script that ends itself must not end the command as if all were well
        raise ValueError(f"{reference} raised {_told(error)}.") from error


Parameters = list[inspect.Parameter] | None


def parameters_of(reference: str) -> Parameters:
    """The parameters of the function that `reference` names; None for a C function that does not declare them."""
    try:
        return list(inspect.signature(find_own(reference)).parameters.values())
    except ValueError:
        return None


def takes(parameters: Parameters, name: str) -> bool:
    """Whether a function with these parameters takes a keyword argument of that name."""
    if parameters is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return True
    return name in [parameter.name for parameter in parameters if not _gathers(parameter)]


def _gathers(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def find_own(reference: str) -> Callable[..., Any]:
    """The function that `reference` names."""
    module_name, _, name = reference.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise ValueError(f'{reference!r} names no function: write "package.module:function".')
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:  # a command installed by pip does not look in the current folder
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ValueError(
                f"there is no module {error.name} for {reference}: modules are looked for in {here} and where Python "
                "looks."
            ) from error
        raise ValueError(f"importing {module_name} for {reference} raised {_told(error)}.") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"importing {module_name} for {reference} raised {_told(error)}.") from error
    for part in name.split("."):
        if not hasattr(found, part):
            offered = [n for n, value in vars(found).items() if callable(value) and not n.startswith("_")]
            has = f"it has {', '.join(offered[:10])}" if offered else "it has no functions"
            raise ValueError(f"{module_name} has no function {part!r} for {reference}: {has}.")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{reference} is a {type(found).__name__}, which cannot be called: name a function.")
    return found


def _told(error: Exception | SystemExit) -> str:
    """An error of the user's code in one line: its kind, its message, and where it was raised."""
    said = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {said}"
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in (__file__, importlib.__file__)]
    own = [frame for frame in own if not frame.filename.startswith("<frozen")]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}{f': {said}' if said else ''}{place}"
