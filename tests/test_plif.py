"""FusedPLIF as a layer: the decay it learns, the state it carries, and training with it under every memory form."""

import copy

import pytest
import torch
from spikingjelly.activation_based import functional, neuron, surrogate
from torch import nn

from stdl_engine import FusedLIF, FusedPLIF, reset_states
from stdl_engine.kernels import bits_of
from stdl_engine.kernels.plif import reference
from stdl_engine.neurons import NEURONS

from .rules.nets import assert_same, assert_same_results, batches, make, numbers, small, train, unchanged
from .stepping import there_and_back

onlines = pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])


def sequence(steps: int = 3) -> torch.Tensor:
    return torch.randn(steps, 4, 5) + 0.5


def run(layer: nn.Module, xs: torch.Tensor) -> torch.Tensor:
    """One call a time step, from a state of nothing."""
    reset_states(layer)
    return torch.stack([layer(x) for x in xs])


def test_is_found_by_name():
    assert NEURONS["plif"] is FusedPLIF


def test_one_parameter_the_decays_logit():
    plif = FusedPLIF(decay=0.3)
    assert {name: tuple(p.shape) for name, p in plif.named_parameters()} == {"w": (1,)}
    assert plif.decay == pytest.approx(0.3, rel=1e-6)
    with torch.no_grad():
        plif.w.fill_(0.0)
    assert plif.decay == 0.5
    plif(torch.ones(3))
    assert list(plif.state_dict()) == ["w"]


def test_gradient_through_time_is_the_references():
    options = {"scale": 0.8, "scale_by_decay": True}
    xs, upstream = sequence().requires_grad_(), torch.randn(3, 4, 5)
    plif = FusedPLIF(0.4, 0.9, **options)
    found = run(plif, xs)
    w, m, spikes = plif.w.detach().clone().requires_grad_(), torch.zeros(4, 5), []
    for x in xs:
        s, m = reference.plif_step(x, m, w, 0.9, **options)
        spikes.append(s)
    right = torch.stack(spikes)
    assert torch.equal(found, right)
    assert torch.equal(plif.membrane, m)
    mine, theirs = (torch.autograd.grad(o, [xs, p], upstream) for o, p in ((found, plif.w), (right, w)))
    for gradient, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)


def test_fires_like_lif_of_the_same_decay():
    xs = sequence(5)
    plif = FusedPLIF(0.5)
    lif = FusedLIF(plif.decay)
    assert torch.equal(run(plif, xs), run(lif, xs))
    assert torch.equal(plif.membrane, lif.membrane)


@pytest.mark.parametrize(
    ("decay_input", "reset", "v_reset"), [(False, "soft", None), (True, "hard", 0.0)], ids=["plain", "decay_input"]
)
def test_same_as_spikingjelly(decay_input, reset, v_reset):
    """In float64, where the two orders of the same sums agree to 15 digits; w is minus theirs, so its gradient is."""
    plif = FusedPLIF(1 - 1 / 3.0, reset=reset, scale_by_decay=decay_input, backend="reference").double()
    triangle = surrogate.PiecewiseQuadratic(alpha=1.0)
    other = neuron.ParametricLIFNode(
        3.0, decay_input, v_reset=v_reset, surrogate_function=triangle, step_mode="s"
    ).double()
    plif.w.data.copy_(-other.w.data)
    xs = (torch.randn(6, 50, dtype=torch.float64) * 2 + 1).requires_grad_()
    upstream = torch.randn(6, 50, dtype=torch.float64)
    functional.reset_net(other)
    found, right = run(plif, xs), torch.stack([other(x) for x in xs])
    assert 0 < found.mean() < 1
    assert torch.equal(found, right)
    mine, theirs = (torch.autograd.grad(o, [xs, p], upstream) for o, p in ((found, plif.w), (right, other.w)))
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(mine[1], -theirs[1].reshape(1), rtol=1e-11, atol=1e-11)


def test_online_gradient_is_of_each_step_alone():
    """Also when backward runs after several steps: each has its own membrane."""
    xs, upstream = sequence(), torch.randn(3, 4, 5)
    gradients = []
    for late in (False, True):
        plif = FusedPLIF(0.5, online=True)
        there_and_back(plif, xs, upstream, at_once=not late)
        gradients.append(plif.w.grad)
    w, m = torch.zeros(1, requires_grad=True), torch.zeros(4, 5)
    for x, grad in zip(xs, upstream, strict=True):
        spikes, m = reference.plif_step(x, m.detach(), w)
        spikes.backward(grad)
    for found in gradients:
        torch.testing.assert_close(found, w.grad, rtol=1e-5, atol=1e-6)
    assert w.grad.abs() > 1e-3


@onlines
def test_step_modes_agree(online):
    xs, upstream = sequence(4), torch.randn(4, 4, 5)
    single, multi = FusedPLIF(0.5, online=online), FusedPLIF(0.5, online=online, step_mode="m")
    outputs = run(single, xs), multi(xs)
    assert torch.equal(*outputs)
    assert torch.equal(single.membrane, multi.membrane)
    for output in outputs:
        output.backward(upstream)
    torch.testing.assert_close(single.w.grad, multi.w.grad, rtol=1e-6, atol=1e-6)


@onlines
def test_state_follows_the_module(online):
    plif, x = FusedPLIF(0.5, online=online), torch.ones(2, 3)
    plif(x)
    other = copy.deepcopy(plif)
    assert torch.equal(other.membrane, plif.membrane)
    assert not other.membrane.requires_grad
    assert plif.half().membrane.dtype == torch.float32
    assert plif.w.dtype == torch.float16
    assert plif(x.half()).dtype == torch.float16
    with pytest.raises(ValueError, match=r"^FusedPLIF holds the state of input \(2, 3\) and got \(3, 3\): call reset"):
        plif(torch.ones(3, 3).half())
    reset_states(plif)
    assert plif.membrane is None
    assert plif.states() == []


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, 1.5])
def test_decay_must_be_inside(decay):
    with pytest.raises(ValueError, match=rf"^decay is {decay}: "):
        FusedPLIF(decay)


def test_repr():
    assert repr(FusedPLIF(0.5, scale_by_decay=True)) == (
        "FusedPLIF(initial_decay=0.5, threshold=1.0, reset=soft, surrogate=Triangle(gamma=1.0), scale_by_decay=True, "
        "online=False, step_mode='s', backend='auto')"
    )


def test_lean_memory_writes_bits_and_over_the_input():
    plif, x = FusedPLIF(online=True), torch.ones(8)
    plif.overwrite = True
    assert plif(x) is not x
    plif.memory_form = "lean"
    assert plif(x).data_ptr() == x.data_ptr()
    exact = FusedPLIF()
    exact.memory_form = "lean"
    assert bits_of(exact(torch.ones(8))).tolist() == [255]


def test_reference_backend_and_inference_mode():
    xs = sequence()
    expected = run(FusedPLIF(0.5), xs)
    assert torch.equal(run(FusedPLIF(0.5, backend="reference"), xs), expected)
    with torch.inference_mode():
        assert torch.equal(run(FusedPLIF(0.5, online=True), xs), expected)


def test_learns_its_decay():
    """A layer that forgets too fast to fire: the gradient leads its decay up, and the loss down."""
    plif, x = FusedPLIF(0.3, step_mode="m"), 0.4 + 0.3 * torch.rand(6, 64)
    optimizer = torch.optim.Adam(plif.parameters(), 0.2)
    losses = []
    for _ in range(15):
        reset_states(plif)
        loss = (plif(x).mean() - 0.4) ** 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert plif.decay > 0.5
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize("rule", ["sltt", "bptt", "stdl"])
def test_lean_equals_paper(rule):
    """After two steps of training every weight, every decay and every statistic, to the last bit."""
    found = []
    for memory in ("lean", "paper"):
        data = batches(2)
        made = make(rule, small(neuron=FusedPLIF), data[0][0], memory=memory)
        before = numbers(made)
        found.append((numbers(made), train(made, data), numbers(made)))
        assert unchanged(before, found[-1][2]) == []  # every decay took part
    assert sum(key.endswith(".w") for key in found[0][0]) == (17 if rule != "stdl" else 17 + 2 * (3 + 2))
    assert_same(found[0][2], found[1][2])
    assert_same_results(found[0][1], found[1][1])


@pytest.mark.usefixtures("norms_by_pytorch")
def test_lean_equals_paper_with_other_options():
    options = {"reset": "hard", "reset_value": 0.1, "surrogate": "atan", "threshold": 0.7, "scale_by_decay": True}
    found = []
    for memory in ("lean", "paper"):
        data = batches(2)
        made = make("sltt", small(neuron=FusedPLIF, **options), data[0][0], memory=memory)
        train(made, data)
        found.append(numbers(made))
    assert_same(*found)
