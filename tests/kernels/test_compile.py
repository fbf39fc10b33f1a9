"""torch.compile: one graph, the same results to the last bit, and never a wrong gradient."""

import shutil

import pytest
import torch
from torch import nn

from stdl_engine import FusedLIF, reset_states
from stdl_engine.kernels.lif import lif_step, lif_step_, reference

from ..stepping import there_and_back
from .compare import assert_equal
from .every_neuron import LIF, every_neuron, random

COMPILERS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"),
    ),
]


@pytest.fixture(params=COMPILERS)
def compiled(request):
    torch._dynamo.reset()
    yield lambda function, **options: torch.compile(function, fullgraph=True, backend=request.param, **options)
    torch._dynamo.reset()


def gradients(outputs, inputs, upstream):
    return torch.autograd.grad(outputs, inputs, upstream)


def test_differentiable_step(compiled):
    """Two steps with work around them, in one graph."""

    def two_steps(x, m):
        spikes, m = lif_step(x * 2, m, decay=0.3, surrogate="atan")
        again, m = lif_step(x + spikes, m, decay=0.3, reset="hard")
        return spikes, again, m

    inputs = random(LIF, (6, 7)).leaves().operands
    upstream = [torch.randn(6, 7) for _ in range(3)]
    found, right = compiled(two_steps)(*inputs), two_steps(*inputs)
    for mine, theirs in zip(found, right, strict=True):
        assert_equal(mine, theirs)
    for mine, theirs in zip(gradients(found, inputs, upstream), gradients(right, inputs, upstream), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)  # the sums around the steps may be reordered


def test_online_step(compiled):
    def step(x, m):
        return lif_step_(x * 2, m, decay=0.3) * 3

    fast = compiled(step)
    given = random(LIF, (6, 7))
    m, right_m = (given.states[0].clone() for _ in range(2))
    for _ in range(3):
        x = torch.randn(6, 7, requires_grad=True)
        found, right = fast(x, m), step(x, right_m)
        assert_equal(found, right)
        assert_equal(m, right_m)
        assert_equal(*(gradients(out, x, given.grad_spikes)[0] for out in (found, right)))


@pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
def test_shapes_may_change(compiled, online):
    def step(x, m):
        return (lif_step_(x, m, decay=0.3), m) if online else lif_step(x, m, decay=0.3)

    fast = compiled(step, dynamic=True)
    for shape in ((2, 3, 4, 5), (3, 2, 5, 4), (4, 4, 2, 3)):
        for layout in (torch.contiguous_format, torch.channels_last):
            given = random(LIF, shape).map(lambda t: t.contiguous(memory_format=layout)).leaves(past=False)  # noqa: B023
            (x, (m,), *_), upstream = given, given.grad_spikes
            found, right = fast(x, m.clone()), step(x, m.clone())
            assert_equal(found[0], right[0])
            assert_equal(found[1], right[1])
            assert found[0].stride() == right[0].stride()
            assert_equal(*(gradients(out[0], x, upstream)[0] for out in (found, right)))


@every_neuron
def test_every_neuron_in_one_graph(neuron):
    """Two steps with work around them; and an online one."""
    states, options = neuron.states, neuron.options

    def two_steps(x, *given):
        spikes, *new = neuron.step(x * 2, *given, **options)
        again, *new = neuron.step(x + spikes, *new, *given[states:], **options | {"threshold": 0.7})
        return spikes, again, *new

    def online(x, *given):
        return neuron.step_(x * 2, *given, **options) * 3

    def in_one_graph(function):
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    given = random(neuron, (6, 7))
    inputs, upstream = given.leaves().operands, [torch.randn(6, 7) for _ in range(2 + states)]
    found, right = in_one_graph(two_steps)(*inputs), two_steps(*inputs)
    for mine, theirs in zip(found, right, strict=True):
        assert_equal(mine, theirs)
    for mine, theirs in zip(gradients(found, inputs, upstream), gradients(right, inputs, upstream), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)

    results = []
    for step in (in_one_graph(online), online):
        leaves = given.map(torch.clone).leaves(past=False)
        spikes = step(*leaves.operands)
        results.append((spikes, *leaves.states, *gradients(spikes, [leaves.x, *leaves.learned], upstream[0])))
    for mine, theirs in zip(*results, strict=True):
        assert_equal(mine, theirs)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
def test_module_in_a_network(compiled, online, order):
    """Three time steps of a small network; online, backward after each."""
    conv = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=order)
    model = nn.Sequential(conv, FusedLIF(0.5, online=online), nn.Flatten(), nn.Linear(4 * 36, 3))
    fast = compiled(model)
    xs = (torch.randn(3, 5, 2, 6, 6) * 2).unbind()
    upstream = torch.randn(3, 5, 3).unbind()

    def train(network):
        reset_states(model)
        model.zero_grad()
        ordered = [x.contiguous(memory_format=order) for x in xs]
        outputs = there_and_back(network, ordered, upstream, at_once=online)
        state = model[1].membrane.detach().clone()
        return [*(out.detach() for out in outputs), state, *(p.grad.clone() for p in model.parameters())]

    for mine, theirs in zip(train(fast), train(model), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_module_over_a_sequence(compiled):
    lif = FusedLIF(0.5, step_mode="m")
    x = torch.randn(3, 4, 5, requires_grad=True)
    upstream = torch.randn(3, 4, 5)
    right = lif(x)
    expected = gradients(right, x, upstream)[0]
    lif.reset()
    found = compiled(lif)(x)
    assert_equal(found, right)
    torch.testing.assert_close(gradients(found, x, upstream)[0], expected, rtol=1e-6, atol=1e-6)


def test_state_that_moved_on_never_gives_a_wrong_gradient(compiled):
    """Two compiled calls, then both backwards: the first is right or it raises."""
    step = compiled(lambda x, m: lif_step_(x, m, decay=0.5))
    x1, x2 = (torch.randn(64, requires_grad=True) for _ in range(2))
    upstream = torch.randn(64)
    right_m, m = torch.zeros(64), torch.zeros(64)
    expected = [gradients(reference.lif_step_(x, right_m, decay=0.5), x, upstream)[0] for x in (x1, x2)]
    s1, s2 = step(x1, m), step(x2, m)
    assert_equal(gradients(s2, x2, upstream)[0], expected[1])
    try:
        first = gradients(s1, x1, upstream)[0]
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error) or "advanced" in str(error)  # noqa: PT017
    else:
        assert_equal(first, expected[0])


@pytest.mark.filterwarnings("ignore:Error detected in _OnlineBackward:UserWarning")
def test_two_online_steps_in_one_graph_are_refused(compiled):
    """Their backward could only run when the state has moved on."""

    def two_steps(x, m):
        return lif_step_(x, m) + lif_step_(x, m)

    x, m = torch.randn(8, requires_grad=True), torch.zeros(8)
    with pytest.raises(Exception, match="advanced or changed before that step's backward"):
        compiled(two_steps)(x, m)


def test_two_online_steps_in_one_graph_without_gradient(compiled):
    def two_steps(x, m):
        return lif_step_(x, m) + lif_step_(x, m)

    x, m, right_m = torch.randn(8), torch.zeros(8), torch.zeros(8)
    with torch.no_grad():
        assert_equal(compiled(two_steps)(x, m), two_steps(x, right_m))
    assert_equal(m, right_m)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_compiled_step_without_gradient_counts_as_moving_on(compiled, mode):
    x, m = torch.randn(8, requires_grad=True), torch.zeros(8)
    spikes = lif_step_(x, m)
    with mode():
        compiled(lambda x, m: lif_step_(x, m))(torch.randn(8), m)
    with pytest.raises(RuntimeError, match="advanced or changed before that step's backward"):
        spikes.backward(torch.randn(8))
