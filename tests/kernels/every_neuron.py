"""The three neurons in one table, so that a test of what they share is written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from stdl_engine import kernels
from stdl_engine.kernels.alif import ops as alif
from stdl_engine.kernels.alif import reference as alif_reference
from stdl_engine.kernels.checks import STATE_DTYPE
from stdl_engine.kernels.lif import ops as lif
from stdl_engine.kernels.lif import reference as lif_reference
from stdl_engine.kernels.plif import ops as plif
from stdl_engine.kernels.plif import reference as plif_reference
from stdl_engine.kernels.steps import Steps

from .compare import TOLERANCE, assert_equal


class Neuron(NamedTuple):
    """A neuron's functions, and options for them in which no number is exact in binary."""

    name: str
    step: Callable
    step_: Callable
    sequence: Callable
    sequence_: Callable
    plain: Callable
    """One step in plain PyTorch."""
    operators: Steps
    kernel_options: NamedTuple
    """The same options as the operators take them."""
    options: dict[str, Any]
    states: int = 1
    learned: bool = False

    def __str__(self) -> str:
        return self.name


_LIF = {"decay": 0.3, "threshold": 0.6, "scale": 0.8}
_PLIF = {"threshold": 0.6, "scale": 0.8}
_ALIF = _LIF | {"beta": 0.7, "rho": 0.8}
_REST = (False, "triangle", "auto")
NEURONS = [
    Neuron(
        "lif", kernels.lif_step, kernels.lif_step_, kernels.lif_sequence, kernels.lif_sequence_,
        lif_reference.lif_step, lif.STEPS, lif.Options.checked(0.3, 0.6, "soft", 0.0, 0.8, *_REST), _LIF,
    ),
    Neuron(
        "plif", kernels.plif_step, kernels.plif_step_, kernels.plif_sequence, kernels.plif_sequence_,
        plif_reference.plif_step, plif.STEPS, lif.Options.checked(0.5, 0.6, "soft", 0.0, 0.8, *_REST), _PLIF,
        learned=True,
    ),
    Neuron(
        "alif", kernels.alif_step, kernels.alif_step_, kernels.alif_sequence, kernels.alif_sequence_,
        alif_reference.alif_step, alif.STEPS, alif.Options.checked(0.3, 0.6, 0.7, 0.8, 0.8, *_REST), _ALIF, states=2,
    ),
]  # fmt: skip
LIF, PLIF, ALIF = NEURONS
every_neuron = pytest.mark.parametrize("neuron", NEURONS, ids=str)


class Given(NamedTuple):
    """What a step or a sequence takes, and the gradients that come from above."""

    x: Tensor
    states: tuple[Tensor, ...]
    learned: tuple[Tensor, ...]
    grad_spikes: Tensor
    grad_states: tuple[Tensor, ...]

    def leaves(self, past: bool = True) -> Given:
        """The same with tensors that want a gradient; those of the past only if asked."""
        return self._replace(
            x=self.x.detach().requires_grad_(),
            states=tuple(t.detach().requires_grad_(past) for t in self.states),
            learned=tuple(t.detach().requires_grad_() for t in self.learned),
        )

    def steps(self) -> list[Given]:
        """The steps of a sequence, each by itself."""
        return [self._replace(x=x, grad_spikes=g) for x, g in zip(self.x, self.grad_spikes, strict=True)]


def random(
    neuron: Neuron, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu", steps: int = 0
) -> Given:
    """A step's operands, or a sequence's: membranes on both sides of their threshold, some of them at it exactly."""
    time = (steps,) if steps else ()
    state_dtype = STATE_DTYPE[dtype]
    m, adaptation = (torch.randn(shape) * 0.7 + 0.7).to(state_dtype), torch.rand(shape, dtype=state_dtype)
    level = torch.full_like(m, neuron.options["threshold"])
    if neuron.states == 2:
        level = level + neuron.options["beta"] * adaptation
    m.view(-1)[::7] = level.view(-1)[::7]
    states = (m, adaptation)[: neuron.states]
    given = Given(
        (torch.randn(*time, *shape) * 0.7 + 0.5).to(dtype), states,
        (torch.tensor([-0.37], dtype=state_dtype),) if neuron.learned else (),
        torch.randn(*time, *shape).to(dtype), tuple(torch.randn_like(state) for state in states),
    )  # fmt: skip
    return on(given, device)


def on(given: Given, device: str) -> Given:
    move = [t.to(device) if isinstance(t, Tensor) else tuple(one.to(device) for one in t) for t in given]
    return Given(*move)


class Result(NamedTuple):
    """What a step or a sequence gives."""

    spikes: Tensor
    states: tuple[Tensor, ...]
    grads: tuple[Tensor, ...]
    """Of the input and, if not online, of the states before."""
    grad_w: Tensor | None


def run(neuron: Neuron, function: Callable, given: Given, *, online: bool = False, **options: Any) -> Result:
    """Forward and backward of a function that returns spikes and new states."""
    given, options = given.leaves(past=not online), neuron.options | options
    if online:
        options["online"] = True
    spikes, *states = function(given.x, *given.states, *given.learned, **options)
    outputs, upstream = ([spikes], [given.grad_spikes]) if online else (
        [spikes, *states], [given.grad_spikes, *given.grad_states],
    )  # fmt: skip
    inputs = [given.x, *(() if online else given.states), *given.learned]
    grads = torch.autograd.grad(outputs, inputs, upstream)
    grads, grad_w = (grads[:-1], grads[-1]) if neuron.learned else (grads, None)
    return Result(spikes.detach(), tuple(t.detach() for t in states), grads, grad_w)


def one_by_one(step: Callable) -> Callable:
    """A sequence by the function of a single step."""

    def sequence(x: Tensor, *given: Tensor, **options: Any) -> tuple[Tensor, ...]:
        spikes, states = [], ()
        for x_t in x:
            s, *states = step(x_t, *given, **options)
            given = (*states, *given[len(states) :])
            spikes.append(s)
        return torch.stack(spikes), *states

    return sequence


def run_over(neuron: Neuron, function: Callable, given: Given, **options: Any) -> Result:
    """Forward and backward of a function that writes over its states."""
    given = given.leaves(past=False)
    states = tuple(t.clone() for t in given.states)
    spikes = function(given.x * 1, *states, *given.learned, **neuron.options | options)
    grads = torch.autograd.grad(spikes, [given.x, *given.learned], given.grad_spikes)
    return Result(spikes.detach(), states, grads[:1], grads[1] if neuron.learned else None)


def run_over_one_by_one(neuron: Neuron, given: Given, **options: Any) -> Result:
    """A sequence by single steps over the state, each with its own backward."""
    states, results = given.states, []
    for step in given.steps():
        results.append(run_over(neuron, neuron.step_, step._replace(states=states), **options))
        states = results[-1].states
    grads = (torch.stack([result.grads[0] for result in results]),)
    grad_w = sum(result.grad_w for result in results) if neuron.learned else None
    return Result(torch.stack([result.spikes for result in results]), states, grads, grad_w)


def assert_same(found: Result, right: Result) -> None:
    """Equal to the last bit, but for the decay's gradient, which is a sum."""
    assert_equal(found.spikes, right.spikes)
    for mine, theirs in zip(found.states + found.grads, right.states + right.grads, strict=True):
        assert_equal(mine, theirs)
    assert (found.grad_w is None) == (right.grad_w is None)
    if found.grad_w is not None:
        assert found.grad_w.shape == right.grad_w.shape
        # Terms of either sign cancel: a few roundings of what they are before.
        tolerance = 16 * TOLERANCE[found.grad_w.dtype] * max(1.0, found.spikes.numel() ** 0.5)
        torch.testing.assert_close(found.grad_w, right.grad_w, rtol=tolerance, atol=tolerance, equal_nan=True)
