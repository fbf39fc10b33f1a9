"""Borrowing a model: its layers are set to a mode for a while, and then each is restored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from .base import Neuron


@contextlib.contextmanager
def borrowed(
    modules: Iterable[nn.Module], *, training: bool, online: bool, memory: str, samples: int | None = None
) -> Iterator[None]:
    """Inside, layers are in training or evaluation mode and take one time step per call (with `samples` several, of
    this many samples each). Neurons are online or exact, in this form of memory, and without a state. Afterwards every
    module is as it was, even after an exception.
    """
    modules = list(dict.fromkeys(modules))
    before = [(module, _mode(module)) for module in modules]
    states = [(module, module.set_aside()) for module in modules if isinstance(module, Neuron)]
    mode = {"training": training, "online": online, "memory_form": memory, "step_mode": "s", "samples": samples}
    try:
        for module, own in before:
            _set(module, {name: mode[name] for name in own})
        yield
    finally:
        for module, own in before:
            _set(module, own)
        for neuron, state in states:
            neuron.take_back(state)


@contextlib.contextmanager
def in_class(modules: Iterable[nn.Module], kind_for: Callable[[Any], type], **values: Any) -> Iterator[None]:
    """Inside, each of these modules has the class that `kind_for` returns for its own, and these values as attributes.
    Afterwards, even after an exception, every module has its own class again and the attributes are gone."""
    before: list[tuple[nn.Module, Any]] = [(module, type(module)) for module in modules]
    try:
        for module, kind in before:
            module.__class__ = kind_for(kind)
            vars(module).update(values)
        yield
    finally:
        for module, kind in before:
            module.__class__ = kind
            for name in values:
                vars(module).pop(name, None)


def _mode(module: nn.Module) -> dict[str, Any]:
    """The settings of a module that borrowing changes, as they are now."""
    names = ["training"]
    names += [name for name in ("memory_form", "step_mode") if hasattr(module, name)]
    names += ["online", "samples"] if isinstance(module, Neuron) else []
    return {name: getattr(module, name) for name in names}


def _set(module: nn.Module, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if getattr(module, name) != value:
            setattr(module, name, value)
