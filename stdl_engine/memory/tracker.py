"""Follow every tensor's memory from birth to death, and so know the peak exactly.

On CPU and on fake tensors a dispatch mode sees each operator's results; a storage is counted once however many views
it has, by a weak reference whose callback takes it off again, so the tracker keeps nothing alive. Memory an operator
takes and gives back inside itself is not seen. On CUDA the caching allocator counts for us.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ..kernels.norm_lif import PendingMap


@dataclass(frozen=True)
class Place:
    """Where in a training step something happens."""

    step: int | None = None
    subnetwork: int | None = None
    unit: str | None = None
    phase: str | None = None


@dataclass(frozen=True)
class Event:
    """One point of a trace: where it was, and the bytes alive then."""

    place: Place
    bytes: int


class Tracker(TorchDispatchMode):
    """Counts the bytes of all tensors made inside the context, and of those given to `follow` before.

    Attributes:
        current, peak: bytes alive now, and the most that ever were.
        trace: an `Event` for each change of `current`, if asked for with `trace=True`.
        peak_place: where the peak was reached.
        changed: the storage that was born or has died last, by its identity, and its bytes, negative if it died.

    `at_peak` is called at each new peak, `on_change` at every change of `current`.

    Example:
        >>> with Tracker() as tracker:
        ...     a = torch.zeros(1000)
        ...     b = a[10:] + 1
        ...     del a, b
        >>> tracker.peak, tracker.current
        (7960, 0)
    """

    def __init__(
        self,
        trace: bool = False,
        at_peak: Callable[[Tracker], None] | None = None,
        on_change: Callable[[Tracker], None] | None = None,
    ) -> None:
        super().__init__()
        self.current = self.peak = 0
        self.changed = (0, 0)
        self.place = self.peak_place = Place()
        self.trace: list[Event] | None = [] if trace else None
        self.at_peak, self.on_change = at_peak, on_change
        self._alive: dict[int, tuple[weakref.ref, int]] = {}
        self._saved: set[int] = set()

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that were made before the context, parameters for example; of a slice only its own bytes."""
        for tensor in tensors:
            self._born(tensor, at_most=tensor.nbytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter((args, result) if PendingMap in types else result):
            if isinstance(value, PendingMap):  # has no memory before its numbers are read
                value = value.numbers.written
            if isinstance(value, Tensor):
                self._born(value)
        return result

    def __enter__(self) -> Tracker:
        _active.append(self)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        _active.remove(self)
        super().__exit__(*exception)

    def alive(self) -> dict[int, int]:
        """Bytes of every storage alive, by an identity that `identity` gives for a tensor."""
        return {key: size for key, (_, size) in self._alive.items()}

    def saved(self) -> set[int]:
        """Identities of the storages alive that autograd holds for a backward."""
        return self._saved

    def _born(self, tensor: Tensor, at_most: float = math.inf) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        size = int(min(storage.nbytes(), at_most))
        self._alive[key] = (weakref.ref(storage, lambda _: self._died(key)), size)
        self._change(key, size)

    def _died(self, key: int) -> None:
        _, size = self._alive.pop(key)
        self._saved.discard(key)
        self._change(key, -size)

    def _change(self, key: int, size: int) -> None:
        self.current += size
        self.changed = key, size
        if self.on_change:
            self.on_change(self)
        if self.trace is not None:
            self.trace.append(Event(self.place, self.current))
        if self.current > self.peak:
            self.peak, self.peak_place = self.current, self.place
            if self.at_peak:
                self.at_peak(self)


class CudaTracker:
    """The same peak from CUDA's caching allocator: `peak` after the context, bytes allocated in the whole process."""

    def __init__(self, device: torch.device | str | None = None) -> None:
        self.device = device
        self.peak = 0

    def __enter__(self) -> CudaTracker:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return self

    @property
    def current(self) -> int:
        """Bytes allocated now."""
        return torch.cuda.memory_allocated(self.device)

    def __exit__(self, *exception: Any) -> None:
        torch.cuda.synchronize(self.device)
        self.peak = torch.cuda.max_memory_allocated(self.device)


def identity(tensor: Tensor) -> int:
    """The key of a tensor's storage in `Tracker.alive`."""
    return tensor.untyped_storage()._cdata


_active: list[Tracker] = []


def mark(**place: Any) -> None:
    """Tell the tracker in force, if any, where the training step is; fields not named stay as they are."""
    for tracker in _active:
        tracker.place = replace(tracker.place, **place)


def note_saved(tensor: Tensor) -> None:
    """Tell the tracker in force, if any, that autograd keeps this tensor."""
    for tracker in _active:
        if identity(tensor) in tracker._alive:
            tracker._saved.add(identity(tensor))


def is_tracking() -> bool:
    """Whether a tracker is in force."""
    return bool(_active)


def mark_backward(output: Tensor, unit: str) -> None:
    """Have backward mark this unit, and the time step that is marked now, when it comes to what made `output`."""
    if _active and output.grad_fn is not None:
        step = _active[-1].place.step  # no tensor, which would change what is measured
        output.grad_fn.register_prehook(lambda *_: mark(unit=unit, step=step))
