"""A SpikingJelly node that steps with a fused kernel.

The object stays: its place in the model, its hooks, parameters, attributes and memories. Only its class changes, to one
that derives from both a fused layer and the class it had, as PyTorch's `parametrize` and `fully_shard` do. So code that
looks for a `LIFNode` still finds it, and every reference to it stays valid. What SpikingJelly's functions assign takes
effect, because the fused layer's settings are properties that read the node's own attributes at every step.

SpikingJelly's state is `v`, after reset; a fused layer's is the membrane before reset, counted from rest. A node holds
one of the two at a time. A step leaves the membrane. Reading or assigning `v`, directly or as a memory, turns the state
into `v`, so that an in-place change of `v` takes effect as well; the next step begins from `v` and has no reset to do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ...kernels import dispatch
from ...kernels.lif.ops import STATE_DTYPE
from ...kernels.norm_lif import Pending, PendingMap
from .. import Neuron
from ..lif import LeakyNeuron
from . import spikingjelly_settings as settings
from .spikingjelly_memories import Memories, as_it_was
from .swap import NotConvertible

ITS_BACKENDS = ("torch", "cupy", "inductor")
"""Backends of SpikingJelly, which compute what the fused kernels do. Assigning one changes nothing here."""


RESET_BY = ("v_threshold", "v_reset", "detach_reset", "surrogate_function")
"""The attributes that say how a membrane is reset."""


if TYPE_CHECKING:

    class _Bases(LeakyNeuron, settings.Node):
        """The base that follows `FusedNode` in every fused class."""

else:
    _Bases = object


def setting(read: Callable[[settings.Node], Any]) -> Any:
    """A property: a setting of the fused layer, read from the node's own attributes each time."""

    def get(node: FusedNode) -> Any:
        try:
            return read(node)
        except NotConvertible as reason:
            raise ValueError(
                f"{type(node).__name__} cannot take a step: {reason}; assign a value that has a fused equal "
                "(docs/convert.md)."
            ) from None

    return property(get, doc=read.__doc__)


class FusedNode(_Bases):
    """What all fused nodes share; comes before a fused layer in the list of bases."""

    kind: ClassVar[type[nn.Module]]
    """The class that the node had before: SpikingJelly's, or one derived from it."""

    rest = setting(settings.rest)
    threshold = setting(settings.threshold)
    surrogate = setting(settings.surrogate)
    _precision = setting(settings.precision)
    reset_value = 0.0

    _v: Any
    """SpikingJelly's state, a tensor or a number; None where `membrane` is in use."""
    _started = False
    """Whether `membrane` was just made from `v`, for a step that is still to come."""
    _skips_reset = False
    """Whether that step must not reset neurons that seem to have fired."""

    @property
    def reset_mode(self) -> str:  # type: ignore[override]  # cannot be set: it follows from the node's own attributes
        if self._skips_reset and self.memory_form != "paper":  # whose step has no reset before it
            return "none"
        return "soft" if self.v_reset is None else "hard"

    @property
    def v(self) -> Tensor | float:
        """The membrane after reset, with its history; a number where there is no state."""
        if self.membrane is not None:
            if not self._started:
                v = self.membrane if self.memory_form == "paper" else self.after_reset(self.membrane)
                self._v = v + self.rest if self.rest else v
            self.v = self._v
        return self._v

    @v.setter
    def v(self, value: Tensor | float) -> None:
        vars(self).update(_v=value, membrane=None, _started=False, _skips_reset=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "v":  # also a Parameter, which nn.Module would register
            FusedNode.v.fset(self, value)  # type: ignore[attr-defined]  # of a property, which mypy has no type for
            return
        if name in RESET_BY and self.membrane is not None:
            self.v  # noqa: B018 - the reset that is due uses the old value
        super().__setattr__(name, value)

    @property
    def v_seq(self) -> Tensor | None:
        """With `store_v_seq`, v after each step: of the last call in step mode "m", since the reset in mode "s"."""
        return torch.stack(self._v_steps) if self._v_steps else None

    @v_seq.setter
    def v_seq(self, values: Tensor | None) -> None:
        self._v_steps = [] if values is None else list(values)

    @property
    def backend(self) -> str:
        """The backend of the fused kernels."""
        return self._kernels

    @backend.setter
    def backend(self, value: str) -> None:
        if value not in ITS_BACKENDS:
            dispatch.check_name(value)
            self._kernels = value

    @property
    def _memories(self) -> Memories:
        """SpikingJelly's table of states by name."""
        return Memories(self)

    @_memories.setter
    def _memories(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def prepare(self, x: Tensor) -> None:
        self._precision  # noqa: B018 - raises where one is set
        dtype, m = STATE_DTYPE.get(x.dtype), self.membrane
        if m is not None and (m.shape, m.dtype, m.device) != (x.shape, dtype, x.device):
            self.v  # noqa: B018 - the state that SpikingJelly fits to a new shape is v
        if self.membrane is None and dtype is not None:
            self.membrane, self._skips_reset = self._start(x, dtype)
            self._started = True
        super().prepare(x)

    def _start(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, bool]:
        """A membrane for input `x` from `v`, and whether some of it may be at the threshold already."""
        v, rest = self._v, self.rest
        if isinstance(v, Tensor) and v.shape == x.shape:
            return v.to(x.device, dtype) - rest, True
        start = rest if isinstance(v, Tensor) else v  # for another shape SpikingJelly starts again
        return torch.full_like(x, start - rest, dtype=dtype, requires_grad=False), start - rest >= self.threshold

    def step(self, x: Tensor, in_place: bool) -> Tensor:
        spikes = super().step(x, in_place)
        if self._started:
            self._v, self._started, self._skips_reset = None, False, False
        if self.store_v_seq:
            self._v_steps.append(self.v)
        return spikes

    def sequence(self, x: Tensor) -> Tensor:
        self._v_steps = []
        if self.store_v_seq:
            return Neuron.sequence(self, x)  # step by step
        first = self.first_of(x)
        self.prepare(first)
        if not self._skips_reset:
            spikes = super().sequence(x)
            self._v, self._started = None, False
            return spikes
        spikes = self.step(first, in_place=False)
        if self.samples is None:
            spikes = spikes.unsqueeze(0)
        rest = x[len(spikes) :]
        return torch.cat([spikes, super().sequence(rest)]) if len(rest) else spikes

    def fire(self, pending: Pending, *, dense: bool) -> tuple[Tensor, Tensor]:
        spikes = super().fire(pending, dense=dense)
        self._v, self._started = None, False
        return spikes

    def fire_from(self, x: PendingMap) -> Tensor | None:
        spikes = super().fire_from(x)
        if spikes is not None:
            self._v, self._started, self._v_steps = None, False, []
        return spikes

    def _follows_options(self) -> bool:
        return not self._skips_reset and not self.store_v_seq

    def forward(self, x: Tensor) -> Tensor:
        if self._counted():
            with as_it_was(self):
                return self.forward(x)
        return super().forward(x)

    def _counted(self) -> bool:
        """Whether a SpikingJelly counter is active, which only knows the operations of SpikingJelly's own nodes."""
        if torch.compiler.is_compiling() or self.online or self.memory_form is not None:
            return False
        modes = (*_get_current_dispatch_mode_stack(), *_get_current_function_mode_stack())
        return any(type(mode).__module__.startswith("spikingjelly.") for mode in modes)

    def single_step_forward(self, x: Tensor) -> Tensor:
        """One time step, whatever the step mode."""
        self.prepare(x)
        return self.step(x, in_place=self.online)

    def multi_step_forward(self, x_seq: Tensor) -> Tensor:
        """A sequence [T, ...], whatever the step mode."""
        return self.sequence(x_seq) if len(x_seq) else x_seq.clone()

    def single_step_functional_forward(self, inputs: tuple, states: tuple, **options: Any) -> tuple[tuple, tuple]:
        """Outputs and new states from given states; the node's own state stays as it is."""
        return self._from_states("single_step", inputs, states, options)

    def multi_step_functional_forward(self, inputs: tuple, states: tuple, **options: Any) -> tuple[tuple, tuple]:
        return self._from_states("multi_step", inputs, states, options)

    def _from_states(self, how: str, inputs: tuple, states: tuple, options: dict) -> tuple[tuple, tuple]:
        if self._counted():
            with as_it_was(self):
                return getattr(self, f"{how}_functional_forward")(inputs, states, **options)
        own = self.set_aside()
        try:
            self._memories = dict(zip(self._memories, states, strict=True))
            output = getattr(self, f"{how}_forward")(*inputs)
            return (output,), tuple(self._memories.values())
        finally:
            self.take_back(own)

    def reset(self) -> None:
        super().reset()
        self._memories = {name: copy.deepcopy(value) for name, value in self._memories_rv.items()}
        self._v_steps = []

    def set_aside(self) -> dict[str, Any]:
        names = ("membrane", "_v", "_started", "_skips_reset", "_v_steps", *self._more_memories())
        state = {name: getattr(self, name) for name in names}
        self.reset()
        return state

    def take_back(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def detach_state(self) -> None:
        super().detach_state()
        vars(self).update(_detached(vars(self)))

    def detach(self) -> None:
        """Keep the state but not its history: what `functional.detach_net` calls."""
        self.detach_state()

    def _more_memories(self) -> list[str]:
        """The memories that are neither `v` nor derived from it."""
        return [name for name in self._memories_rv if name not in ("v", "v_seq")]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FusedNode:
        super()._apply(fn, recurse)
        own, starts = vars(self), self._memories_rv
        for table, names in ((own, ["_v", *self._more_memories()]), (starts, list(starts))):
            for name in names:
                if isinstance(table[name], Tensor):
                    table[name] = _moved(table[name], fn)
        return self

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        return state | _detached(state)

    def extra_repr(self) -> str:
        return f"{self.kind.extra_repr(self)}, kernels={self.backend!r}"


def _moved(state: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.no_grad():
        moved = fn(state)
    # .half() and .bfloat16() leave the state as precise as it is
    return moved if moved.dtype in STATE_DTYPE.values() else state.to(moved.device)


def _detached(attributes: dict[str, Any]) -> dict[str, Any]:
    """The parts of a state other than `membrane`, without their history."""
    v = attributes["_v"]
    return {
        "_v": v.detach() if isinstance(v, Tensor) else v,
        "_v_steps": [step.detach() for step in attributes["_v_steps"]],
    }
