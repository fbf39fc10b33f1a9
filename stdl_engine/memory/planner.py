"""Peak memory before a run: the real training step of the real rule, on fake tensors, followed by the tracker.

Fake tensors have shapes and no numbers, so a batch of 512 plans in seconds and in little real memory. Nothing is
modelled: what is predicted is what the same code does on real tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from ..neurons import Neuron
from .tracker import Place, Tracker, identity

if TYPE_CHECKING:
    from ..rules import Rule

PARTS = ("parameters", "optimizer", "gradients", "states", "saved", "transient")
"""What a peak is made of; "saved" is what autograd holds for backward, "transient" all that has no other name."""


@dataclass(frozen=True)
class Prediction:
    """Peak memory of a training step.

    Attributes:
        peak_bytes: the most bytes alive at once, parameters, optimizer and input included.
        parts: the same bytes by what they are, one entry for each of `PARTS`.
        place: where in the step the peak is.
        subnetworks: for each one the names of its units and auxiliary layers and the peak while it runs.
    """

    rule: str
    memory: str
    batch_size: int
    steps: int
    peak_bytes: int
    parts: dict[str, int]
    place: Place
    subnetworks: list[dict[str, Any]]


def predict(
    rule: Callable[..., Rule],
    model: nn.Sequential,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    sample: Tensor | tuple[int, ...],
    T: int,
    *,
    autocast: torch.dtype | None = None,
    **options,
) -> Prediction:
    """Peak memory of `rule(model, optimizer, sample, **options).step(x, y, T)`, after the optimizer has its state.

    The model is not touched: its shapes are copied. `sample` is a batch, or its shape.
    """
    shape = tuple(sample.shape) if isinstance(sample, Tensor) else tuple(sample)
    with FakeTensorMode():
        x, y = torch.empty(shape), torch.empty(shape[0], dtype=torch.int64)
        trained = rule(fake_copy(model), optimizer, x, **options)
        return measure(trained, x, y, T, autocast=autocast)


def measure(rule: Rule, x: Tensor, y: Tensor, T: int, *, autocast: torch.dtype | None = None) -> Prediction:
    """Peak memory of `rule.step(x, y, T)` on these tensors, fake or real: two steps are run, a short one first so that
    the optimizer has its state, and the peak of the second is counted."""
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        rule.step(x, y, 1)
        observed = _Observed(rule)
        with observed.tracker:
            rule.step(x, y, T)
    tracker = observed.tracker
    return Prediction(
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
    )


class _Observed:
    """A tracker on a rule's next step that also notes what the peak is made of and each subnetwork's own peak."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.parts = dict.fromkeys(PARTS, 0)
        self.peaks = [0] * len(rule.subnetworks)
        self.tracker = Tracker(at_peak=self._at_peak, on_change=self._on_change)
        self.tracker.follow(_unique(self._tensors("parameters") + self._tensors("optimizer")))

    def _tensors(self, part: str) -> list[Tensor]:
        modules = list(self.rule.modules())
        if part == "parameters":
            return [t for m in modules for t in (*m.parameters(recurse=False), *m.buffers(recurse=False))]
        if part == "optimizer":
            states = (state for o in self.rule.optimizers for state in o.state.values())
            return [value for state in states for value in state.values() if isinstance(value, Tensor)]
        if part == "gradients":
            return [p.grad for m in modules for p in m.parameters(recurse=False) if p.grad is not None]
        return [m.membrane for m in modules if isinstance(m, Neuron) and m.membrane is not None]

    def _at_peak(self, tracker: Tracker) -> None:
        alive = tracker.alive()
        for part in ("parameters", "optimizer", "gradients", "states"):
            self.parts[part] = sum(alive.pop(identity(t), 0) for t in self._tensors(part))
        self.parts["saved"] = sum(alive.pop(key, 0) for key in tracker.saved())
        self.parts["transient"] = sum(alive.values())

    def _on_change(self, tracker: Tracker) -> None:
        number = tracker.place.subnetwork
        if number is not None:
            self.peaks[number] = max(self.peaks[number], tracker.current)


def fake_copy(model: nn.Module) -> nn.Module:
    """The model with every tensor replaced by one of the fake mode in force."""
    memo: dict[int, Any] = {id(b): torch.empty(b.shape, dtype=b.dtype) for b in model.buffers()}
    for p in model.parameters():
        memo[id(p)] = nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=p.requires_grad)
    return copy.deepcopy(model, memo)


def _unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({identity(t): t for t in tensors}.values())
