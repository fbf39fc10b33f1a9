"""The LIF step on every backend against the reference: spikes, state and every gradient."""

import pytest
import torch

from stdl_engine.kernels.lif import lif_step, lif_step_, reference
from stdl_engine.kernels.surrogate import SURROGATES

from .compare import RESETS, Case, assert_equal, assert_near, assert_same, on_targets_and_dtypes, run, run_online

# Neither number is exact in binary: what a backend rounds differently shows.
OPTIONS = {"decay": 0.3, "threshold": 0.6, "scale": 0.8}

resets = pytest.mark.parametrize("reset", RESETS, ids=lambda r: r["reset"])


@on_targets_and_dtypes()
@resets
@pytest.mark.parametrize("detach_reset", [False, True], ids=["attached", "detached"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_step_equals_reference(target, surrogate, detach_reset, reset, dtype):
    case = Case.random((37,), dtype, target.device, threshold=OPTIONS["threshold"])
    options = OPTIONS | reset | {"detach_reset": detach_reset, "surrogate": SURROGATES[surrogate]()}
    assert_same(run(case, target, **options), run(case, **options), target.is_exact(surrogate, dtype))


@on_targets_and_dtypes()
@resets
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_online_step_equals_reference(target, surrogate, reset, dtype):
    case = Case.random((37,), dtype, target.device, threshold=OPTIONS["threshold"])
    options = OPTIONS | reset | {"surrogate": SURROGATES[surrogate]()}
    assert_same(run_online(case, target, **options), run_online(case, **options), target.is_exact(surrogate, dtype))


@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (8,), (3, 5, 7), (2, 3, 1, 5), (1023,), (1025,), (2049,), (4099,)], ids=str
)
def test_any_shape(target, shape):
    """One neuron, and sizes on both sides of a byte, a tile and a block."""
    case = Case.random(shape, torch.float32, target.device)
    assert_same(run(case, target), run(case))
    assert_same(run_online(case, target), run_online(case))


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)], ids=str)
@on_targets_and_dtypes()
def test_no_neurons(target, shape, dtype):
    case = Case.random(shape, dtype, target.device)
    assert_same(run(case, target), run(case))
    assert_same(run_online(case, target), run_online(case))


@resets
@pytest.mark.parametrize("detach_reset", [False, True], ids=["attached", "detached"])
@on_targets_and_dtypes()
def test_sequence_equals_reference(target, detach_reset, reset, dtype):
    """Three steps through time; near, not equal, because autograd adds up a membrane's gradients in another order."""
    options = OPTIONS | reset | {"detach_reset": detach_reset}
    inputs = [Case.random((29,), dtype, target.device) for _ in range(3)]
    final = torch.randn(29, device=target.device, dtype=inputs[0].m_prev.dtype)

    def sequence(step):
        xs, m0 = [case.x.detach().requires_grad_() for case in inputs], inputs[0].m_prev.detach().requires_grad_()
        m, spikes = m0, []
        for x in xs:
            s, m = step(x, m)
            spikes.append(s)
        upstream = [case.grad_spikes for case in inputs]
        return spikes, m, torch.autograd.grad([*spikes, m], [*xs, m0], [*upstream, final])

    spikes, m, grads = sequence(lambda x, m: lif_step(x, m, backend=target.backend, **options))
    right_spikes, right_m, right_grads = sequence(lambda x, m: reference.lif_step(x, m, **options))
    assert_equal(torch.stack(spikes), torch.stack(right_spikes))
    assert_equal(m, right_m)
    for gradient, right in zip(grads, right_grads, strict=True):
        assert_near(gradient, right)


@resets
def test_online_sequence_equals_reference(target, reset):
    options = OPTIONS | reset
    cases = [Case.random((29,), torch.float32, target.device) for _ in range(3)]
    m, right_m = cases[0].m_prev.clone(), cases[0].m_prev.clone()
    for case in cases:
        x, right_x = (case.x.detach().requires_grad_() for _ in range(2))
        spikes = lif_step_(x, m, backend=target.backend, **options)
        right_spikes = reference.lif_step_(right_x, right_m, **options)
        spikes.backward(case.grad_spikes)
        right_spikes.backward(case.grad_spikes)
        assert_equal(spikes.detach(), right_spikes.detach())
        assert_equal(m, right_m)
        assert_equal(x.grad, right_x.grad)


@resets
@pytest.mark.parametrize("used", ["spikes", "m"])
@pytest.mark.parametrize("wanted", ["x", "m_prev"])
def test_part_of_the_gradients(target, wanted, used, reset):
    """Only one output is used, or only one input wants its gradient."""
    case = Case.random((37,), torch.float32, target.device)

    def gradient(step):
        inputs = {name: getattr(case, name).detach().requires_grad_(name == wanted) for name in ("x", "m_prev")}
        spikes, m = step(inputs["x"], inputs["m_prev"])
        output, upstream = (spikes, case.grad_spikes) if used == "spikes" else (m, case.grad_m)
        return torch.autograd.grad(output, inputs[wanted], upstream)[0]

    options = OPTIONS | reset
    found = gradient(lambda x, m: lif_step(x, m, backend=target.backend, **options))
    assert_equal(found, gradient(lambda x, m: reference.lif_step(x, m, **options)))


def test_unused_outputs_give_no_gradient(target):
    case = Case.random((5,), torch.float32, target.device)

    class Nothing(torch.autograd.Function):  # a consumer that returns no gradient at all
        @staticmethod
        def forward(ctx, spikes):
            return spikes.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    x = case.x.requires_grad_()
    spikes, _ = lif_step(x, case.m_prev, backend=target.backend)
    for output in (spikes, lif_step_(x, case.m_prev, backend=target.backend)):
        Nothing.apply(output).backward(case.grad_spikes)
        assert x.grad is None or not x.grad.any()


@resets
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, in the interpreter
def test_not_finite_stays_in_its_neuron(target, online, surrogate, reset):
    step = run_online if online else run
    options = OPTIONS | reset | {"surrogate": SURROGATES[surrogate]()}
    healthy = Case.random((40,), torch.float32, target.device)
    ill = healthy.map(torch.clone)
    not_finite = torch.tensor([float("nan"), float("inf"), float("-inf")])
    ill.x[3:6], ill.m_prev[11:14], ill.grad_spikes[20:23], ill.grad_m[30:33] = (not_finite.to(ill.x) for _ in range(4))

    found, right = step(ill, target, **options), step(healthy, target, **options)
    assert_same(found, step(ill, **options), target.is_exact(surrogate, torch.float32))
    others = torch.ones(40, dtype=torch.bool, device=target.device)
    for place in (3, 11, 20, 30):
        others[place : place + 3] = False
    for mine, other in zip(found, right, strict=True):
        if mine is not None:
            assert_equal(mine[others], other[others])


@pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
def test_whole_numbers_as_parameters(target, online):
    case = Case.random((9,), torch.float32, target.device)
    step = run_online if online else run
    options = {"decay": 1, "threshold": 1, "scale": 2, "reset": "hard", "reset_value": 0}
    assert_same(step(case, target, **options), step(case, **options))


def test_input_and_past_are_left_alone(target):
    case = Case.random((33,), torch.float32, target.device)
    before = case.map(torch.clone)
    run(case, target, **OPTIONS)
    for now, then in zip(case, before, strict=True):
        assert_equal(now, then)
