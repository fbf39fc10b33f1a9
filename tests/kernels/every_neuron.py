"""The harness of all neurons: their table, operands for them, one way to run them, one to compare, and what to try.

A test of what neurons share is written once, with `neuron` from the table. A new neuron is one more row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from stdl_engine import kernels
from stdl_engine.kernels import bits_of
from stdl_engine.kernels.alif import ops as alif
from stdl_engine.kernels.alif import reference as alif_reference
from stdl_engine.kernels.bits.reference import pack
from stdl_engine.kernels.checks import STATE_DTYPE
from stdl_engine.kernels.lif import ops as lif
from stdl_engine.kernels.lif import reference as lif_reference
from stdl_engine.kernels.plif import ops as plif
from stdl_engine.kernels.plif import reference as plif_reference
from stdl_engine.kernels.steps import Steps
from stdl_engine.kernels.surrogate import FORMS, SURROGATES, Triangle

from .compare import DTYPES, TARGETS, TOLERANCE, Target, assert_equal, assert_near, name_of

Options = dict[str, Any]


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
    options: Options
    variants: dict[str, Options]
    """What compiles to other kernels, by name: kinds of reset and the like. The first is the default."""
    states: int = 1
    learned: bool = False
    thorough: bool = False
    """Whether every surrogate is tried with every dtype: the surrogates of all neurons are the same functions."""
    level: Callable[..., Any] = lambda options: options["threshold"]
    """The membrane at which a neuron fires, from the options and the states besides the membrane."""

    def __str__(self) -> str:
        return self.name

    @property
    def default(self) -> str:
        """The first of the variants."""
        return next(iter(self.variants))


_LIF = {"decay": 0.3, "threshold": 0.6, "scale": 0.8}
_PLIF = {"threshold": 0.6, "scale": 0.8}
_ALIF = _LIF | {"beta": 0.7, "rho": 0.8}
_REST = (False, "triangle", "auto")
_SOFT, _HARD, _NONE = {"reset": "soft"}, {"reset": "hard", "reset_value": 0.25}, {"reset": "none"}
_DETACHED, _SCALED = {"detach_reset": True}, {"scale_by_decay": True}
NEURONS = [
    Neuron(
        "lif", kernels.lif_step, kernels.lif_step_, kernels.lif_sequence, kernels.lif_sequence_,
        lif_reference.lif_step, lif.STEPS, lif.Options.checked(0.3, 0.6, "soft", 0.0, 0.8, *_REST), _LIF,
        {
            "soft": _SOFT, "hard": _HARD, "none": _NONE, "soft-detached": _SOFT | _DETACHED,
            "hard-detached": _HARD | _DETACHED, "none-detached": _NONE | _DETACHED,
        },
        thorough=True,
    ),
    Neuron(
        "plif", kernels.plif_step, kernels.plif_step_, kernels.plif_sequence, kernels.plif_sequence_,
        plif_reference.plif_step, plif.STEPS, lif.Options.checked(0.5, 0.6, "soft", 0.0, 0.8, *_REST), _PLIF,
        {
            "soft": _SOFT, "hard-scaled": _HARD | _SCALED, "none": _NONE,
            "soft-detached-scaled": _SOFT | _DETACHED | _SCALED,
        },
        learned=True,
    ),
    Neuron(
        "alif", kernels.alif_step, kernels.alif_step_, kernels.alif_sequence, kernels.alif_sequence_,
        alif_reference.alif_step, alif.STEPS, alif.Options.checked(0.3, 0.6, 0.7, 0.8, 0.8, *_REST), _ALIF,
        {"attached": {}, "detached": _DETACHED},
        states=2, level=lambda options, adaptation: options["threshold"] + options["beta"] * adaptation,
    ),
]  # fmt: skip
LIF, PLIF, ALIF, *_ = NEURONS
every_neuron = pytest.mark.parametrize("neuron", NEURONS, ids=str)


class Choice(NamedTuple):
    """What a kernel is compiled for besides its neuron."""

    surrogate: str
    variant: str
    dtype: torch.dtype
    ways: tuple[str, ...]
    """Those of `WAYS` to try."""

    def __str__(self) -> str:
        return f"{name_of(self.dtype)}-{self.variant}-{self.surrogate}"

    def options(self, neuron: Neuron) -> Options:
        return neuron.variants[self.variant] | {"surrogate": SURROGATES[self.surrogate]()}


WAYS = ("exact", "online", "over")
"""Differentiable in the past; with the past as a constant; and with the new states written over the old ones."""
every_way = pytest.mark.parametrize("way", WAYS)


def choices(neuron: Neuron) -> list[Choice]:
    """What a neuron is tried with: pairs, not products.

    Each choice compiles a kernel or two, at about a second each, and what goes wrong depends on two choices at most:
    the equation, the surrogate, the reset and the conversion of numbers are functions that call each other. So LIF
    tries every surrogate with every dtype, and goes round its variants meanwhile. Thereby every variant meets every
    dtype, and every surrogate every reset: 28 kernels, where the product of all has 140. Other neurons, which use the
    same surrogates, try every variant, every dtype, and one surrogate after the other. They leave out float16, which
    differs from bfloat16 only in two conversions that LIF tries.

    Online steps have no gradient through the reset, so less is left there that surrogate and dtype could disagree
    about: LIF tries every surrogate with float32, and every dtype with the first surrogate.
    """
    variants, first = list(neuron.variants), DTYPES[0]
    if not neuron.thorough:
        pairs = [(variant, first) for variant in variants]
        pairs += [(variants[row % len(variants)], dtype) for row, dtype in enumerate(DTYPES[1:-1], start=1)]
        return [Choice(one, *pair, WAYS) for one, pair in zip(itertools.cycle(SURROGATES), pairs, strict=False)]
    found = []
    for row, dtype in enumerate(DTYPES):
        for name, surrogate in SURROGATES.items():
            column = list(FORMS).index(surrogate.form)
            ways = WAYS if dtype == first or column == 0 else WAYS[:1]
            found.append(Choice(name, variants[(row + column) % len(variants)], dtype, ways))
    return found


def on_choices(keep: Callable[[Target, torch.dtype], bool] = Target.takes) -> pytest.MarkDecorator:
    """Run a test on every `target` with every `neuron` and what it is tried with, as `choice`."""
    cases = [
        (target, neuron, choice)
        for target in TARGETS
        for neuron in NEURONS
        for choice in choices(neuron)
        if keep(target, choice.dtype)
    ]
    return pytest.mark.parametrize(("target", "neuron", "choice"), cases, ids=str)


class Given(NamedTuple):
    """What a step or a sequence takes, and the gradients that come from above."""

    x: Tensor
    states: tuple[Tensor, ...]
    learned: tuple[Tensor, ...]
    grad_spikes: Tensor
    grad_states: tuple[Tensor, ...]

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return self.x, *self.states, *self.learned

    @property
    def is_sequence(self) -> bool:
        return self.x.ndim > self.states[0].ndim

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

    def map(self, change: Callable[[Tensor], Tensor]) -> Given:
        """Each tensor changed."""
        return Given(*(change(t) if isinstance(t, Tensor) else tuple(map(change, t)) for t in self))

    def map_neurons(self, change: Callable[[Tensor], Tensor]) -> Given:
        """Each tensor changed that has a number for each neuron."""
        return self._replace(learned=()).map(change)._replace(learned=self.learned)

    def tensors(self) -> Iterator[Tensor]:
        return itertools.chain(self.operands, (self.grad_spikes,), self.grad_states)


def random(
    neuron: Neuron, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu", steps: int = 0,
    **options: Any,
) -> Given:  # fmt: skip
    """A step's operands, or a sequence's: membranes on both sides of their threshold, some of them at it exactly."""
    time = (steps,) if steps else ()
    state_dtype = STATE_DTYPE[dtype]
    m, *others = (torch.randn(shape) * 0.7 + 0.7).to(state_dtype), torch.rand(shape, dtype=state_dtype)
    others = others[: neuron.states - 1]
    level = torch.zeros_like(m) + neuron.level(neuron.options | options, *others)
    m.view(-1)[::7] = level.view(-1)[::7]
    states = (m, *others)
    given = Given(
        (torch.randn((*time, *shape)) * 0.7 + 0.5).to(dtype), states,
        (torch.tensor([-0.37], dtype=state_dtype),) if neuron.learned else (),
        torch.randn((*time, *shape)).to(dtype), tuple(torch.randn_like(state) for state in states),
    )  # fmt: skip
    return given.map(lambda t: t.to(device))


class Result(NamedTuple):
    """What a step or a sequence gives."""

    spikes: Tensor
    states: tuple[Tensor, ...]
    grads: tuple[Tensor, ...]
    """Of the input and, if not online, of the states before."""
    grad_w: Tensor | None
    bits: Tensor | None = None
    """Those that the spikes carry."""

    def tensors(self) -> tuple[Tensor, ...]:
        """All that have a number for each neuron."""
        return self.spikes, *self.states, *self.grads


def run(
    neuron: Neuron, given: Given, target: Target | str | None = None, way: str = "exact", *, by_step: bool = False,
    **options: Any,
) -> Result:  # fmt: skip
    """Forward and backward of a step or a sequence, on a target, by a backend's name, or in plain PyTorch.

    With `by_step` a sequence is one call for each of its steps; over its states each has its own backward.
    """
    if by_step and way == "over":
        return _over_by_step(neuron, given, target, options)
    given, options = given.leaves(past=way == "exact"), neuron.options | options
    if way == "over":  # there such a gradient is not
        options.pop("detach_reset", None)
    if target is None:
        spikes, *states = _plain(neuron, given, way, options)
    else:
        backend = target if isinstance(target, str) else target.backend
        spikes, *states = _call(neuron, given, way, by_step, options | {"backend": backend})
    outputs, upstream = [spikes], [given.grad_spikes]
    inputs = [given.x, *given.learned]
    if way == "exact":
        outputs, upstream = [*outputs, *states], [*upstream, *given.grad_states]
        inputs[1:1] = given.states
    assert not any(state.requires_grad for state in states) or way == "exact"
    bits = None if target is None else bits_of(spikes)
    grads = torch.autograd.grad(outputs, inputs, upstream)
    grads, grad_w = (grads[:-1], grads[-1]) if neuron.learned else (grads, None)
    return Result(spikes.detach(), tuple(t.detach() for t in states), grads, grad_w, bits)


def _plain(neuron: Neuron, given: Given, way: str, options: Options) -> tuple[Tensor, ...]:
    """By the plain step alone. What is learned is one number, or one for each step and neuron."""
    spikes, states = [], given.states
    for t, x in enumerate(given.x if given.is_sequence else given.x[None]):
        learned = (w.reshape(()) if w.numel() == 1 else w[t] if given.is_sequence else w for w in given.learned)
        s, *states = neuron.plain(x, *states, *learned, **options)
        states = [state if way == "exact" else state.detach() for state in states]
        spikes.append(s)
    return torch.stack(spikes) if given.is_sequence else spikes[0], *states


def _call(neuron: Neuron, given: Given, way: str, by_step: bool, options: Options) -> tuple[Tensor, ...]:
    """By the function that users call for this."""
    if way == "over":
        overwrite = options.get("overwrite", False)
        x = given.x * 1 if overwrite else given.x  # a leaf may not be written over
        states = tuple(state.clone() for state in given.states)
        function = neuron.sequence_ if given.is_sequence else neuron.step_
        spikes = function(x, *states, *given.learned, **options)
        assert (spikes.data_ptr() == x.data_ptr()) == overwrite or not x.numel()
        return spikes, *states
    if way == "online":
        options = options | {"online": True}
    function = neuron.sequence if given.is_sequence and not by_step else neuron.step
    return (one_by_one(function) if by_step else function)(*given.operands, **options)


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


def _over_by_step(neuron: Neuron, given: Given, target: Target | str | None, options: Options) -> Result:
    """A sequence by single steps over the state, each with its own backward."""
    states, results = given.states, []
    for step in given.steps():
        results.append(run(neuron, step._replace(states=states), target, "over", **options))
        states = results[-1].states
    grads = (torch.stack([result.grads[0] for result in results]),)
    grad_w = sum(result.grad_w for result in results) if neuron.learned else None
    return Result(torch.stack([result.spikes for result in results]), states, grads, grad_w)


def check(neuron: Neuron, given: Given, target: Target, ways: Sequence[str] = WAYS, **options: Any) -> None:
    """A step against plain PyTorch: spikes, states and gradients to the last bit where arithmetic allows, bits, and
    the gradient of a learned decay against float64."""
    exact = target.is_exact(options.get("surrogate", Triangle()), given.x.dtype)
    for way in ways:
        found = run(neuron, given, target, way, **options)
        assert_same(found, run(neuron, given, None, way, **options), exact)
        if way == "over":
            assert_equal(found.bits, pack(found.spikes))
        if neuron.learned:
            check_decay(neuron, given, found.grad_w, way, **options)


def check_decay(neuron: Neuron, given: Given, grad_w: Tensor, way: str, **options: Any) -> None:
    """The gradient of w, a sum over neurons and steps, to rounding of its terms in float64."""
    each, dtype = given.map(torch.Tensor.double), grad_w.dtype
    each = each._replace(learned=tuple(torch.zeros_like(each.x) + w.reshape(()) for w in each.learned))
    options = neuron.options | options
    # The numbers that kernels have: m - threshold is 0 where both are rounded alike.
    rounded = {name: torch.tensor(n, dtype=dtype).item() for name, n in options.items() if isinstance(n, float)}
    terms = run(neuron, each, None, way, **options | rounded).grad_w
    assert (grad_w.dtype, grad_w.shape) == (given.learned[0].dtype, given.learned[0].shape)
    assert (grad_w.double() - terms.sum()).abs() <= TOLERANCE[grad_w.dtype] * terms.abs().sum()


def check_sequence(neuron: Neuron, given: Given, target: Target, ways: Sequence[str] = WAYS, **options: Any) -> None:
    """A sequence against single steps to the last bit, and against plain PyTorch: near, because autograd adds up a
    state's gradients in another order."""
    for way in ways:
        found = run(neuron, given, target, way, **options)
        assert_same(found, run(neuron, given, target, way, by_step=True, **options))
        assert_same(found, run(neuron, given, None, way, **options), exact=False)
        if way == "over":
            assert_equal(found.bits, pack(found.spikes))
        if neuron.learned:
            check_decay(neuron, given, found.grad_w, way, **options)


def assert_same(found: Result, right: Result, exact: bool = True) -> None:
    """Spikes and states equal to the last bit, gradients too if `exact`, else near; but for the decay's gradient, which
    is a sum."""
    assert_equal(found.spikes, right.spikes)  # so no spike may flip
    for mine, theirs in zip(found.states, right.states, strict=True):
        assert_equal(mine, theirs)
    for mine, theirs in zip(found.grads, right.grads, strict=True):
        (assert_equal if exact else assert_near)(mine, theirs)
    assert (found.grad_w is None) == (right.grad_w is None)
    if found.grad_w is not None:
        assert found.grad_w.shape == right.grad_w.shape
        # Terms of either sign cancel: a few roundings of what they are before.
        tolerance = 16 * TOLERANCE[found.grad_w.dtype] * max(1.0, found.spikes.numel() ** 0.5)
        torch.testing.assert_close(found.grad_w, right.grad_w, rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_identical(found: Result, right: Result) -> None:
    """Equal to the last bit, the gradient of a learned decay too."""
    assert_same(found, right)
    if found.grad_w is not None:
        assert_equal(found.grad_w, right.grad_w)
