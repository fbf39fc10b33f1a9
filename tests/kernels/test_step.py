"""A step of every neuron on every backend against plain PyTorch: spikes, states and every gradient."""

import itertools

import pytest
import torch

from stdl_engine.kernels.cpu_threads import CHUNK
from stdl_engine.kernels.surrogate import SURROGATES

from .compare import CPU, DTYPES, assert_equal, on_targets_and_dtypes
from .every_neuron import (
    LIF,
    NEURONS,
    WAYS,
    Given,
    assert_identical,
    assert_same,
    check,
    choices,
    every_neuron,
    every_way,
    on_choices,
    random,
    run,
)


@on_choices()
def test_step_equals_reference(target, neuron, choice):
    given = random(neuron, (37,), choice.dtype, target.device)
    check(neuron, given, target, choice.ways, **choice.options(neuron))


def test_choices_are_all_pairs():
    for neuron in NEURONS:
        for way in WAYS:
            tried = [choice for choice in choices(neuron) if way in choice.ways]
            assert {choice.dtype for choice in tried} >= {torch.float32, torch.float64, torch.bfloat16}
            assert {choice.variant for choice in tried if choice.dtype == torch.float32} == set(neuron.variants)
    tried = choices(LIF)
    assert {c.dtype for c in tried if c.ways == WAYS} == set(DTYPES)
    assert {(c.surrogate, c.dtype) for c in tried} == set(itertools.product(SURROGATES, DTYPES))
    assert {(c.variant, c.dtype) for c in tried} == set(itertools.product(LIF.variants, DTYPES))
    resets = {(c.surrogate, LIF.variants[c.variant]["reset"]) for c in tried}
    assert resets == set(itertools.product(SURROGATES, ("soft", "hard", "none")))


@every_neuron
@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (8,), (3, 5, 7), (2, 3, 1, 5), (1023,), (1025,), (2049,), (4099,)], ids=str
)
def test_any_shape(target, neuron, shape):
    """One neuron, and sizes on both sides of a byte, a tile and a block."""
    check(neuron, random(neuron, shape, device=target.device), target)


@every_neuron
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)], ids=str)
@on_targets_and_dtypes()
def test_no_neurons(target, neuron, shape, dtype):
    given = random(neuron, shape, dtype, target.device)
    check(neuron, given, target)
    found = run(neuron, given, target)
    assert all(t.shape == shape for t in found.tensors())
    assert not found.grad_w  # None, or 0


@every_neuron
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_more_than_a_chunk(neuron, threads):
    """On any number of threads the same to the last bit, the sum for a learned decay too."""
    given = random(neuron, (3 * CHUNK + 77,))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        check(neuron, given, CPU, ["exact", "over"])
        found = [run(neuron, given, CPU) for _ in range(3)]
        torch.set_num_threads(1)
        right = run(neuron, given, CPU)
    finally:
        torch.set_num_threads(before)
    for once in found:
        assert_identical(once, right)


PARTS = [
    (neuron, variant, wanted, used)
    for neuron in NEURONS
    for variant in neuron.variants
    for wanted in ("x", *(f"past {state}" for state in range(neuron.states)), *(["w"] if neuron.learned else []))
    for used in ("spikes", *(f"state {state}" for state in range(neuron.states)))
    if not (used == "state 1" and wanted == "x")  # which does not depend on it
    # All pairs: the default with everything, other resets with one part each.
    if variant == neuron.default or (neuron.thorough and (variant, used) in (("hard", "state 0"), ("none", "spikes")))
]


@pytest.mark.parametrize(("neuron", "variant", "wanted", "used"), PARTS, ids=str)
def test_part_of_the_gradients(target, neuron, variant, wanted, used):
    """Only one output is used, or only one input wants its gradient."""
    given = random(neuron, (37,), device=target.device)
    options = neuron.options | neuron.variants[variant]
    names = ["x", *(f"past {state}" for state in range(neuron.states)), "w"]

    def gradient(step, **backend):
        operands = [t.detach().requires_grad_(name == wanted) for name, t in zip(names, given.operands, strict=False)]
        outputs = step(*operands, **backend, **options)
        place = 0 if used == "spikes" else 1 + int(used[-1])
        upstream = (given.grad_spikes, *given.grad_states)[place]
        return torch.autograd.grad(outputs[place], operands[names.index(wanted)], upstream)[0]

    found, right = gradient(neuron.step, backend=target.backend), gradient(neuron.plain)
    if wanted == "w":
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    else:
        assert_equal(found, right)


@every_neuron
def test_unused_outputs_give_no_gradient(target, neuron):
    class Nothing(torch.autograd.Function):  # a consumer that returns no gradient at all
        @staticmethod
        def forward(ctx, spikes):
            return spikes.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    given = random(neuron, (5,), device=target.device).leaves(past=False)
    for output in (
        neuron.step(*given.operands, backend=target.backend)[0],
        neuron.step_(*given.operands, backend=target.backend),
    ):
        Nothing.apply(output).backward(given.grad_spikes)
        for leaf in (given.x, *given.learned):
            assert leaf.grad is None or not leaf.grad.any()


def with_ill_neurons(healthy: Given) -> tuple[Given, torch.Tensor]:
    """NaN and infinities in three neurons of each operand but the second state, and which neurons are others."""
    ill, others = healthy.map(torch.clone), torch.ones_like(healthy.x, dtype=torch.bool)
    operands = (ill.x, ill.states[0], ill.grad_spikes, *ill.grad_states)
    for place, t in zip((3, 11, 20, 30, 36), operands, strict=False):
        t[place : place + 3] = torch.tensor([float("nan"), float("inf"), float("-inf")]).to(t)
        others[place : place + 3] = False
    return ill, others


@on_choices()
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, in the interpreter
def test_not_finite_stays_in_its_neuron(target, neuron, choice):
    healthy, options = random(neuron, (40,), choice.dtype, target.device), choice.options(neuron)
    ill, others = with_ill_neurons(healthy)
    exact = target.is_exact(options["surrogate"], choice.dtype)
    for way in choice.ways[::2]:
        found = run(neuron, ill, target, way, **options)
        assert_same(found, run(neuron, ill, None, way, **options), exact)
        for mine, right in zip(found.tensors(), run(neuron, healthy, target, way, **options).tensors(), strict=True):
            assert_equal(mine[others], right[others])


@every_neuron
@every_way
def test_whole_numbers_as_parameters(target, neuron, way):
    tried = [choice.options(neuron) for choice in choices(neuron) if choice.dtype == torch.float32]
    hard = [options | {"reset_value": 0} for options in tried if options.get("reset") == "hard"]
    options = dict.fromkeys(neuron.options, 1) | {"scale": 2} | (hard or tried)[0]
    check(neuron, random(neuron, (9,), device=target.device, **options), target, [way], **options)


@every_neuron
def test_input_and_past_are_left_alone(target, neuron):
    given = random(neuron, (33,), device=target.device)
    before = given.map(torch.clone)
    for way in ("exact", "online"):
        run(neuron, given, target, way)
        for now, then in zip(given.tensors(), before.tensors(), strict=True):
            assert_equal(now, then)


@every_neuron
@every_way
def test_backend_reference_is_the_plain_step(neuron, way):
    given = random(neuron, (3, 5))
    assert_identical(run(neuron, given, "reference", way), run(neuron, given, None, way))
