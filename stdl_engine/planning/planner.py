"""Peak memory before a run: the real training step of the real rule, on fake tensors, followed by the tracker.

Fake tensors have shapes and no numbers, so a batch of 512 plans in seconds and in little real memory. Nothing is
modelled: what is predicted is what the same code does on real tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..kernels.layout import empty_steps
from ..memory.spikes import Kept
from ..memory.tracker import Event, Place, Tracker, identity
from ..neurons import Neuron
from .budgets import format_bytes
from .fake import fake_copy, fake_like, faking
from .flow import Flow
from .network import Network
from .plan import Plan
from .subnetworks import Subnetwork
from .work import Work

PARTS = ("parameters", "optimizer", "gradients", "states", "saved", "transient")
"""What a peak is made of; "saved" is what autograd holds for backward, "transient" is everything else."""


MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
"""Makes an optimizer from parameters, as `functools.partial(torch.optim.SGD, lr=0.1)` does."""


class Trainable(Protocol):
    """What the planner asks of a learning rule (`stdl_engine.rules.Rule`)."""

    online: bool
    memory: str
    order: str
    network: Network
    plan: Plan
    subnetworks: list[Subnetwork]
    optimizers: list[Optimizer]
    scalers: list[Any]

    def trial(self, network: Network, plan: Plan) -> Trainable: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def flow(self, subnetwork: Subnetwork) -> Flow: ...
    def step(self, x: Tensor, y: Tensor, T: int) -> Any: ...
    def started(self, y: Tensor, T: int, still: Tensor | None = None) -> contextlib.AbstractContextManager[None]: ...
    def learn(self, subnetwork: Subnetwork, t: int, x: Kept) -> Kept: ...
    def finish(self, subnetwork: Subnetwork) -> None: ...


@dataclass(frozen=True)
class Prediction:
    """Peak memory of a training step.

    Attributes:
        peak_bytes: the most bytes alive at once, with parameters, optimizer and input.
        parts: the same bytes by kind, one entry for each of `PARTS`.
        place: where in the step the peak is.
        subnetworks: for each one the names of its units and auxiliary layers and the peak while it runs.
        recompute: the pieces that run again in backward, by subnetwork and name.
        cost: multiply-adds of a step relative to those of BPTT that recomputes nothing; None if they were not counted.
    """

    rule: str
    memory: str
    batch_size: int
    steps: int
    peak_bytes: int
    parts: dict[str, int]
    place: Place
    subnetworks: list[dict[str, Any]]
    recompute: list[str]
    cost: float | None = None
    chunk: int = 1
    """How many time steps run together."""

    def title(self, binary: bool = False) -> str:
        """The peak, and of what it is one; with `binary` in GiB."""
        peak = format_bytes(self.peak_bytes, binary)
        return f"{self.rule}, {self.memory} memory, batch {self.batch_size}, T={self.steps}: peak {peak}"

    def details(self, binary: bool = False) -> list[str]:
        """What the peak is made of, where it is reached, and how the step runs."""
        step, part = (self.place.step or 0) * self.chunk + 1, (self.place.subnetwork or 0) + 1
        return [
            ", ".join(f"{part} {format_bytes(self.parts[part], binary)}" for part in PARTS),
            f"reached in time step {step}, subnetwork {part}, {self.place.phase}",
            *([f"run again in backward: {', '.join(self.recompute)}"] if self.recompute else []),
            *([f"{self.chunk} time steps run together"] if self.chunk > 1 else []),
        ]

    def __str__(self) -> str:
        subnetworks = (
            f"{number}. {'-'.join(part['units'])}"
            f"{', auxiliary ' + '-'.join(part['auxiliary']) if part['auxiliary'] else ''}: "
            f"{format_bytes(part['peak_bytes'])}"
            for number, part in enumerate(self.subnetworks, 1)
        )
        return "\n".join([self.title(), *self.details(), *subnetworks])


def predict(
    rule: Callable[..., Trainable],
    model: nn.Sequential,
    optimizer: MakeOptimizer,
    sample: Tensor | tuple[int, ...],
    T: int,
    *,
    sequence: bool = False,
    autocast: torch.dtype | None = None,
    **options: Any,
) -> Prediction:
    """Peak memory of `rule(model, optimizer, sample, **options).step(x, y, T)`, after the optimizer has its state.

    The model is not touched: its shapes are copied. `sample` is a batch without time, or its shape; with `sequence`
    x is T different frames of it, [T, B, ...], otherwise the one batch shown T times. A budget in bytes is kept under
    `autocast` too: the rule is made under it.
    """
    with _autocast("cpu", autocast), faking():
        trained, x, y = fake_rule(rule, model, optimizer, sample, T, sequence=sequence, **options)
        cost = Work.of(trained.subnetworks, trained.flow, x[0] if sequence else x).relative(trained.plan.recompute)
        return replace(measure(trained, x, y, T), cost=cost)


def fake_rule(
    rule: Callable[..., Trainable], model: nn.Sequential, optimizer: MakeOptimizer,
    sample: Tensor | tuple[int, ...], T: int, *, sequence: bool, **options: Any,
) -> tuple[Trainable, Tensor, Tensor]:  # fmt: skip
    """A rule on fake tensors, and a batch for it."""
    x = fake_like(sample) if isinstance(sample, Tensor) else torch.empty(sample, dtype=dtype_of(model))
    y = torch.empty(len(x), dtype=torch.int64)
    trained = rule(fake_copy(model), optimizer, x, sequence=sequence, **options)
    trained.scalers = []  # a scaler asks whether a gradient has overflowed, and fake gradients have no values
    return trained, empty_steps(x, T, x.dtype) if sequence else x, y


def measure(rule: Trainable, x: Tensor, y: Tensor, T: int, *, autocast: torch.dtype | None = None) -> Prediction:
    """Peak memory of `rule.step(x, y, T)` on these tensors, fake or real. Two steps run: first a short one, so that the
    optimizer has its state, then the one whose peak is counted. Without `autocast` the context in force, if any, stays.
    """
    with _autocast(x.device.type, autocast):
        short_step(rule, x, y)
        return observed_step(rule, x, y, T)[1]


def short_step(rule: Trainable, x: Tensor, y: Tensor) -> None:
    """One time step of a batch, after which the optimizer has its state."""
    rule.step(x[:1] if x.ndim > 1 + len(rule.network.in_shape) else x, y, 1)


def observed_step(rule: Trainable, x: Tensor, y: Tensor, T: int) -> tuple[Any, Prediction]:
    """Run `rule.step(x, y, T)` and return its peak memory."""
    observed = Observed(rule, x, y)
    with observed.tracker:
        result = rule.step(x, y, T)
    tracker = observed.tracker
    return result, Prediction(
        rule=type(rule).__name__,
        memory=rule.memory,
        batch_size=len(y),
        steps=T,
        peak_bytes=tracker.peak,
        parts=observed.parts,
        place=tracker.peak_place,
        subnetworks=[
            {"units": list(part.names), "auxiliary": list(part.auxiliary_names), "peak_bytes": observed.peaks[number]}
            for number, part in enumerate(rule.plan.parts)
        ],
        recompute=[
            rule.plan.recompute.name(number, stage.name)
            for number, part in enumerate(rule.subnetworks)
            for stage in rule.flow(part).stages
            if rule.plan.recompute.level(number, stage.name)
        ],
        chunk=rule.plan.chunk,
    )


def traced_step(rule: Trainable, x: Tensor, y: Tensor, T: int) -> list[Event]:
    """Every change of the bytes alive in `rule.step(x, y, T)`, with its place, after the optimizer has its state."""
    short_step(rule, x, y)
    tracker = Observed(rule, x, y).tracker
    tracker.trace = [Event(tracker.place, tracker.current)]
    tracker.at_peak = tracker.on_change = None
    with tracker:
        rule.step(x, y, T)
    return tracker.trace


class Observed:
    """A tracker of a rule's next step that also notes what the peak is made of, and each subnetwork's own peak."""

    def __init__(self, rule: Trainable, *batch: Tensor) -> None:
        modules = list(rule.modules())
        self.parameters = [p for m in modules for p in m.parameters(recurse=False)]
        self.neurons = [m for m in modules if isinstance(m, Neuron)]
        self.parts = dict.fromkeys(PARTS, 0)
        self.peaks = [0] * len(rule.subnetworks)
        buffers = [b for m in modules for b in m.buffers(recurse=False)]
        states = [state for o in rule.optimizers for state in o.state.values()]
        held = [t for state in states for t in state.values() if isinstance(t, Tensor)]
        self.fixed = {
            "parameters": {identity(t) for t in (*self.parameters, *buffers)},
            "optimizer": {identity(t) for t in held},
        }
        self.tracker = Tracker()
        self.tracker.follow([*batch, *self.parameters, *buffers, *held])
        self.tracker.at_peak, self.tracker.on_change = self._at_peak, self._on_change

    def _at_peak(self, tracker: Tracker) -> None:
        self.parts = self.parts_now(tracker)

    def parts_now(self, tracker: Tracker) -> dict[str, int]:
        """The bytes alive, by kind."""
        alive = tracker.alive()
        now = {
            **self.fixed,
            "gradients": {identity(p.grad) for p in self.parameters if p.grad is not None},
            "states": {identity(state) for n in self.neurons for state in n.states() if state is not None},
            "saved": tracker.saved(),
        }
        parts = {part: sum(alive.pop(key, 0) for key in identities) for part, identities in now.items()}
        return {**parts, "transient": sum(alive.values())}

    def _on_change(self, tracker: Tracker) -> None:
        number = tracker.place.subnetwork
        if number is not None:
            self.peaks[number] = max(self.peaks[number], tracker.current)


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype that a model computes in."""
    return next(model.parameters()).dtype


def _autocast(device: str, dtype: torch.dtype | None) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext() if dtype is None else torch.autocast(device, dtype)
