"""What all neuron layers share: a state that is carried from step to step until it is reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..kernels import dispatch
from ..kernels.lif.ops import STATE_DTYPE
from ..kernels.norm_lif import PendingMap

OUTSIDE = -1
"""The number of the running backward pass where there is none."""


class Neuron(nn.Module):
    """What all neuron layers share: a state that starts empty, moves with the module and is not in the state_dict.

    A subclass implements `step`, one time step from `self.membrane` (and its other states) to the next.
    """

    state_names: ClassVar[tuple[str, ...]] = ("membrane",)
    """The attributes that hold the state, each a map of the input's shape; either all of them are None or none is."""
    extra_maps: ClassVar[int] = 0
    """Maps that a step keeps beyond LIF's membrane and spikes; footprints count them."""
    _placed_in = OUTSIDE
    """The number of the backward pass in which the state was stored here."""

    def __init__(self, online: bool, step_mode: str, backend: str) -> None:
        super().__init__()
        if step_mode not in ("s", "m"):
            raise ValueError(
                f'unknown step_mode {step_mode!r}: pass "s" (one time step per call) or "m" (input [T, ...]).'
            )
        dispatch.check_name(backend)
        self.online, self.step_mode, self.backend = online, step_mode, backend
        self.membrane: Tensor | None = None
        self.reset()
        self.memory_form: str | None = None
        """Set by learning rules. "lean": spikes are also written as bits. "paper": the plain form, whose state is the
        membrane after reset. Same spikes and gradients to the last bit."""
        self.overwrite = False
        """Whether lean memory may write the spikes over the input; set by a unit that has no other use for it."""
        self.samples: int | None = None
        """Set by learning rules that run several time steps in one call, and its backward before the next call: the
        number of samples per time step. The input holds the samples of one step after those of another."""
        self.stand_in: Callable[[Neuron, Tensor], Tensor] | None = None
        """Called instead of a time step, if set; recomputation uses it."""

    def step(self, x: Tensor, in_place: bool) -> Tensor:
        """Advance the state by one time step and return the spikes; with `in_place` the old state is overwritten."""
        raise NotImplementedError

    def sequence(self, x: Tensor) -> Tensor:
        """Advance the state by the time steps of [T, ...], at least one, and return all spikes. Where `samples` is set
        to B, the input is a chunk, [T·B, ...]."""
        in_place, spikes = self.advances_in_place(x), []
        for x_t in x if self.samples is None else x.split(self.samples):
            self.prepare(x_t)
            spikes.append(self.step(x_t, in_place))
        return torch.stack(spikes) if self.samples is None else torch.cat(spikes)

    def first_of(self, x: Tensor) -> Tensor:
        """The first time step of a sequence."""
        return x[0] if self.samples is None else x[: self.samples]

    def advances_in_place(self, x: Tensor) -> bool:
        """Whether the steps of a sequence may overwrite one state: only online, and if no gradient is needed or
        backward runs before the next sequence. Several sequences before one backward must each keep their own state."""
        goes_back_later = self.samples is None and torch.is_grad_enabled() and self.wants_gradient(x)
        return self.online and not goes_back_later

    def wants_gradient(self, x: Tensor) -> bool:
        """Whether a gradient of this layer's spikes would reach anything."""
        return x.requires_grad or any(p.requires_grad for p in self.parameters(recurse=False))

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, PendingMap) and not torch.compiler.is_compiling():  # a graph takes it as any tensor
            x = x.plain()
        if self.stand_in is not None:
            return self.stand_in(self, x)
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            return self._traced(x)
        if not torch.compiler.is_compiling():
            self._refuse_second_forward()
        if self.step_mode == "m":
            return self.sequence(x) if len(x) else x.clone()
        return self.advance(x)

    def advance(self, x: Tensor) -> Tensor:
        """One time step, or those of a chunk, from the current state, if there is one."""
        if self.samples is not None and len(x) != self.samples:
            return self.sequence(x)
        self.prepare(x)
        return self.step(x, in_place=self.online)

    def _traced(self, x: Tensor) -> Tensor:
        """A whole sequence from its beginning, which an exported graph can hold, as it needs no state."""
        if self.step_mode == "s" or self.membrane is not None:
            raise RuntimeError(
                f"torch.export and torch.jit.trace would lose the state of {type(self).__name__} from one call to the "
                'next: set step_mode="m", so that a call is a whole sequence [T, ...], and call reset_states(model).'
            )
        spikes = self.sequence(x)
        self.reset()
        return spikes

    def _refuse_second_forward(self) -> None:
        """Raise where backward runs this forward again, as torch.utils.checkpoint does, on a state that the first run
        has advanced. A state that was stored in the same backward pass is allowed."""
        backward = torch._C._current_graph_task_id()
        if backward == OUTSIDE:
            return
        if self.membrane is None:
            self._placed_in = backward
        elif self._placed_in != backward:
            raise RuntimeError(
                f"backward runs a forward of {type(self).__name__} again, on a state that has advanced since, which "
                "would give wrong gradients: leave neurons out of torch.utils.checkpoint, or put a whole sequence in "
                "it and call reset_states(model) between forward and backward."
            )

    def prepare(self, x: Tensor) -> None:
        """Make sure that there is a state for a time step's input `x`: the current one, if it fits, or a new one."""
        if x.dtype not in STATE_DTYPE:
            raise TypeError(
                f"{type(self).__name__} got {x.dtype} input: pass float32, float16, bfloat16 or float64, for example "
                "x.float()."
            )
        if self.membrane is None:
            for name in self.state_names:
                setattr(self, name, torch.zeros_like(x, dtype=STATE_DTYPE[x.dtype], requires_grad=False))
        elif self.membrane.shape != x.shape:
            raise ValueError(
                f"{type(self).__name__} holds the state of input {tuple(self.membrane.shape)} and got "
                f"{tuple(x.shape)}: call reset_states(model) before a new sequence."
            )
        elif self.online and self.membrane.requires_grad:
            self.detach_state()

    @property
    def lean(self) -> bool:
        """Whether spikes are also to be written as bits, which compiled graphs cannot carry."""
        return self.memory_form == "lean" and not torch.compiler.is_compiling()

    def states(self) -> list[Tensor]:
        """The state's maps; none before the first step and after `reset()`."""
        return [] if self.membrane is None else [getattr(self, name) for name in self.state_names]

    @property
    def overwrites(self) -> bool:
        """Whether spikes are written over the input: it is allowed, memory is lean, and no hook sees the input."""
        return self.overwrite and self.lean and not has_hooks(self)

    def set_aside(self) -> dict[str, Any]:
        """Forget the state, and return it for `take_back`."""
        state = {name: getattr(self, name) for name in self.state_names}
        self.reset()
        return state

    def take_back(self, state: dict[str, Any]) -> None:
        """Restore the state that `set_aside` returned."""
        self.reset()
        for name, value in state.items():
            setattr(self, name, value)
        self._placed_in = torch._C._current_graph_task_id()

    def reset(self) -> None:
        """Forget the state: the next input starts a new sequence."""
        for name in self.state_names:
            setattr(self, name, None)

    def detach_state(self) -> None:
        """Keep the state's value but not its history, to truncate backpropagation through time."""
        for name, state in zip(self.state_names, self.states(), strict=False):
            setattr(self, name, state.detach())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, state in zip(self.state_names, self.states(), strict=False):
            with torch.no_grad():
                moved = fn(state)  # the same object, with its history, if nothing changes
                if (
                    moved.dtype not in STATE_DTYPE.values()
                ):  # .half() and .bfloat16() leave the state as precise as it is
                    moved = state.to(moved.device)
            setattr(self, name, moved)
        return self

    def __getstate__(self) -> dict:
        """For copies and pickles: they get the state's value but not its autograd history."""
        values = {name: state.detach() for name, state in zip(self.state_names, self.states(), strict=False)}
        return self.__dict__ | values

    def _replicate_for_data_parallel(self) -> Self:
        replica = super()._replicate_for_data_parallel()
        replica.reset()
        return replica


def has_hooks(module: nn.Module) -> bool:
    """Whether a hook sees the inputs or outputs of a module."""
    return any(hooks_of(module)) or torch.nn.modules.module._has_any_global_hook()


def hooks_of(module: nn.Module) -> list[dict]:
    """The tables of a module's forward and backward hooks."""
    return [
        module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks,
    ]  # fmt: skip


def reset_states(model: nn.Module) -> None:
    """Forget the state of every neuron layer of a model."""
    for module in model.modules():
        if isinstance(module, Neuron):
            module.reset()
