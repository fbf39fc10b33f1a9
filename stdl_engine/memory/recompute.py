"""Running a piece a second time in backward, as if it had run once.

What a piece keeps for backward is mostly its convolution's output. It need not be kept: from the piece's inputs, which
are spikes and small, the piece runs again when its gradient is due. The second run must leave no trace: batch norm's
running statistics are updated once, random numbers are drawn once, and hooks that only look see one run.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import active_fake_mode
from torch.nn.modules.batchnorm import _BatchNorm

from ..kernels.layout import is_dense
from .norms import Tables, noting
from .pieces import Carried
from .spikes import Bits


class _Enter(torch.autograd.Function):
    """A map where a graph begins: what comes back to it goes to `receive`. Nothing is kept."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
        ctx.receive = receive
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        ctx.receive(grad)
        return None, None, None


def enter(x: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
    """The map `x` as the beginning of a graph; `receive` is given its gradient, a part for each time it is read."""
    anchor = torch.empty((), device=x.device, requires_grad=True)
    return _Enter.apply(anchor, x, receive)


class Entering(Carried):
    """A map on its way to a piece whose graph begins there."""

    def __init__(self, carried: Carried, receive: Callable[[Tensor], None]) -> None:
        self._carried, self._receive = carried, receive

    def dense(self) -> Tensor:
        return enter(self._carried.dense(), self._receive)

    def bits(self) -> tuple[Tensor, Bits] | None:
        found = self._carried.bits()
        return None if found is None else (enter(found[0], self._receive), found[1])

    def repeated(self) -> None:
        """What a graph begins at is no image."""


class _Leave(torch.autograd.Function):
    """Where a graph ends: a number that stands for maps in the backward pass, so that the maps need not be held."""

    @staticmethod
    def forward(ctx: Any, give: Callable[[], Sequence[Tensor | None]], *maps: Tensor) -> Tensor:
        ctx.give = give
        return maps[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.give()


def leave(maps: Sequence[Tensor], give: Callable[[], Sequence[Tensor | None]]) -> Tensor:
    """A number whose `backward()` starts at all of `maps`, with the gradients that `give` then returns. They are
    handed over: whoever gives them should hold them no longer."""
    return _Leave.apply(give, *maps)


class Gradients:
    """Gradients of maps on their way to the piece that made each map."""

    def __init__(self) -> None:
        self._parts: dict[object, list[Tensor]] = defaultdict(list)

    def receiver(self, key: object) -> Callable[[Tensor], None]:
        """Takes a part of the gradient of one map."""
        return lambda grad: self._parts[key].append(grad)

    def settle(self) -> None:
        """Add up what came in. To be called between backwards: within one, a part may be in use elsewhere too."""
        uses = Counter(_storage(part) for parts in self._parts.values() for part in parts)
        for parts in self._parts.values():
            while len(parts) > 1:
                one, other = parts.pop(0), parts.pop()
                # Where two maps were added, both have the same gradient, which then is not ours to write over.
                over, added = (one, other) if uses[_storage(one)] <= 1 else (other, one)
                in_place = uses[_storage(over)] <= 1 and is_dense(over) and over.dtype == added.dtype
                parts.insert(0, over.add_(added) if in_place else over + added)

    def take(self, key: object) -> Tensor | None:
        """The gradient of a map, which is held here no longer."""
        return next(iter(self._parts.pop(key, ())), None)


def _storage(t: Tensor) -> int:
    """What tensors that share memory have in common."""
    return t.untyped_storage()._cdata


class Rerun:
    """What it takes to run some modules again exactly as they ran once, on one device."""

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self.modules = list(dict.fromkeys(layer for module in modules for layer in module.modules()))
        self.device = device
        self._draws: dict[object, list[Tensor]] = {}
        self._tables: dict[object, list[Tensor]] = {}
        self._changing: set[int] = set()

    @contextlib.contextmanager
    def first(self, key: object) -> Iterator[None]:
        """The first run; `key` is what to call it."""
        before, tables = random_state(self.device), Tables()
        with _hooks_noted(self.modules, self._changing), noting(self.modules, tables):
            yield
        self._tables[key] = tables.noted
        if before and not all(map(torch.equal, before, random_state(self.device))):
            self._draws[key] = before

    @contextlib.contextmanager
    def again(self, key: object, *, keep: bool = False) -> Iterator[None]:
        """The same run another time: with the numbers it drew and batch norm's tables, which are kept if it is not the
        last time, and without a trace."""
        drawn, tables = (of_run.get(key) if keep else of_run.pop(key, None) for of_run in (self._draws, self._tables))
        now = random_state(self.device) if drawn else None
        if drawn:
            set_random_state(drawn, self.device)
        try:
            muted = _hooks_muted(self.modules, self._changing)
            with _statistics_kept(self.modules), muted, noting(self.modules, Tables(tables)):
                yield
        finally:
            if now is not None:
                set_random_state(now, self.device)


def random_state(device: torch.device) -> list[Tensor]:
    """The state of the generators that layers on a device draw from; none where tensors are fake."""
    if active_fake_mode() is not None:
        return []
    state = torch.default_generator.get_state()
    return [state, torch.cuda.get_rng_state(device)] if device.type == "cuda" else [state]


def set_random_state(state: list[Tensor], device: torch.device) -> None:
    """Have the generators draw what they drew from there."""
    torch.default_generator.set_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


@contextlib.contextmanager
def _statistics_kept(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, batch norm does not update its running statistics; other buffers get their values back afterwards."""
    norms = [m for m in modules if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    others = [b for m in modules if not isinstance(m, _BatchNorm) for b in m.buffers(recurse=False)]
    before = [b.clone() for b in others]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
        with torch.no_grad():
            for buffer, value in zip(others, before, strict=True):
                buffer.copy_(value)


FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@contextlib.contextmanager
def _hooks_noted(modules: Sequence[nn.Module], changing: set[int]) -> Iterator[None]:
    """Inside, forward hooks that return something, and so change what a layer gives, are noted in `changing`."""

    def noting(number: int, hook: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            returned = hook(*args, **kwargs)
            if returned is not None:
                changing.add(number)
            return returned

        return call

    tables = [getattr(m, name) for m in modules for name in FORWARD_HOOKS if getattr(m, name)]
    before = [dict(table) for table in tables]
    for table in tables:
        table.update({number: noting(number, hook) for number, hook in table.items()})
    try:
        yield
    finally:
        for table, hooks in zip(tables, before, strict=True):
            table.update({number: hook for number, hook in hooks.items() if number in table})


@contextlib.contextmanager
def _hooks_muted(modules: Sequence[nn.Module], changing: set[int]) -> Iterator[None]:
    """Inside, only those forward hooks are called that change what a layer gives."""
    tables = [(m, name, getattr(m, name)) for m in modules for name in FORWARD_HOOKS if getattr(m, name)]
    for module, name, table in tables:
        setattr(module, name, type(table)((number, hook) for number, hook in table.items() if number in changing))
    try:
        yield
    finally:
        for module, name, table in tables:
            setattr(module, name, table)
