"""The ALIF step on every backend against the reference: spikes, both states and every gradient."""

import gc
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.multiprocessing.reductions import StorageWeakRef

from stdl_engine.kernels import bits_of
from stdl_engine.kernels.alif import alif_reset, alif_step, alif_step_, reference
from stdl_engine.kernels.bits.reference import pack as pack_bits
from stdl_engine.kernels.surrogate import Triangle

from .compare import Case, Target, assert_equal, assert_near, on_targets_and_dtypes

# No number is exact in binary: what a backend rounds differently shows.
OPTIONS = {"decay": 0.3, "threshold": 0.6, "beta": 0.7, "rho": 0.8, "scale": 0.9}

attached_or_not = pytest.mark.parametrize("detach_reset", [False, True], ids=["attached", "detached"])
some_dtypes = on_targets_and_dtypes(lambda target, dtype: dtype in (torch.float32, torch.bfloat16))


class States(NamedTuple):
    """The input, the past, and the gradients that come from above."""

    x: Tensor
    m: Tensor
    adaptation: Tensor
    grad_spikes: Tensor
    grad_m: Tensor
    grad_adaptation: Tensor

    @classmethod
    def random(cls, shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> "States":
        """Membranes on both sides of their thresholds, some of them at it exactly."""
        case = Case.random(shape, dtype, device)
        adaptation, grad = torch.rand_like(case.m_prev), torch.randn_like(case.m_prev)
        level = OPTIONS["threshold"] + OPTIONS["beta"] * adaptation
        case.m_prev.view(-1)[::7] = level.view(-1)[::7]
        return cls(case.x, case.m_prev, adaptation, case.grad_spikes, case.grad_m, grad)

    def map(self, change) -> "States":
        return States(*map(change, self))


def run(case: States, target: Target | None = None, **options) -> tuple[Tensor, ...]:
    """Spikes, both states, and the gradients of x and of the past; on the reference if no target is given."""
    inputs = [t.detach().requires_grad_() for t in case[:3]]
    options = OPTIONS | options
    if target is None:
        outputs = reference.alif_step(*inputs, **options)
    else:
        outputs = alif_step(*inputs, backend=target.backend, **options)
    grads = torch.autograd.grad(outputs, inputs, case[3:])
    return *(t.detach() for t in outputs), *grads


def run_online(case: States, target: Target | None = None, overwrite: bool = False, **options) -> tuple[Tensor, ...]:
    """Spikes, both states and the gradient of x; on the reference if no target is given."""
    leaf, m, adaptation = case.x.detach().requires_grad_(), case.m.clone(), case.adaptation.clone()
    x, options = leaf * 1, OPTIONS | options
    if target is None:
        spikes = reference.alif_step_(x, m, adaptation, **options)
    else:
        spikes = alif_step_(x, m, adaptation, backend=target.backend, overwrite=overwrite, **options)
        assert (spikes.data_ptr() == x.data_ptr()) == overwrite or not x.numel()
    (grad_x,) = torch.autograd.grad(spikes, leaf, case.grad_spikes)
    return spikes.detach(), m, adaptation, grad_x


def assert_same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], exact: bool = True) -> None:
    for place, (mine, right) in enumerate(zip(found, expected, strict=True)):
        (assert_equal if exact or place < 3 else assert_near)(mine, right)


@attached_or_not
@some_dtypes
def test_step_equals_reference(target, dtype, detach_reset):
    case = States.random((37,), dtype, target.device)
    exact = target.is_exact("triangle", dtype)
    options = {"detach_reset": detach_reset}
    assert_same(run(case, target, **options), run(case, **options), exact)


@some_dtypes
def test_online_step_equals_reference(target, dtype):
    case = States.random((37,), dtype, target.device)
    assert_same(run_online(case, target), run_online(case), target.is_exact("triangle", dtype))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (8,), (3, 5, 7), (1025,), (2049,), (4099,)], ids=str)
def test_any_shape(target, shape):
    """One neuron, and sizes on both sides of a byte, a tile and a block."""
    case = States.random(shape, torch.float32, target.device)
    assert_same(run(case, target), run(case))
    assert_same(run_online(case, target), run_online(case))


def test_no_neurons(target):
    case = States.random((3, 0), torch.float32, target.device)
    assert_same(run(case, target), run(case))
    assert_same(run_online(case, target), run_online(case))


@attached_or_not
def test_sequence_equals_reference_in_float64(target, detach_reset):
    """Four steps through time, against plain autograd in float64: no spike near enough to its threshold to flip."""
    cases = [States.random((29,), torch.float32, target.device) for _ in range(4)]
    cases[0].m[::7] += 0.1  # from the threshold, which float32 and float64 round to two sides of it

    def sequence(step, change=lambda t: t):
        inputs = [change(t).detach().requires_grad_() for t in (*(case.x for case in cases), *cases[0][1:3])]
        *xs, m, adaptation = inputs
        spikes = []
        for x in xs:
            s, m, adaptation = step(x, m, adaptation, detach_reset=detach_reset, **OPTIONS)
            spikes.append(s)
        upstream = [change(t) for t in (*(case.grad_spikes for case in cases), *cases[0][4:])]
        grads = torch.autograd.grad([*spikes, m, adaptation], inputs, upstream)
        return torch.stack(spikes), m, adaptation, *grads

    found = sequence(lambda *a, **o: alif_step(*a, backend=target.backend, **o))
    right = sequence(reference.alif_step, torch.Tensor.double)
    for mine, exact in zip(found, right, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5)


def test_online_sequence_equals_reference(target):
    cases = [States.random((29,), torch.float32, target.device) for _ in range(3)]
    states, right_states = ([t.clone() for t in cases[0][1:3]] for _ in range(2))
    for case in cases:
        x, right_x = (case.x.detach().requires_grad_() for _ in range(2))
        spikes = alif_step_(x, *states, backend=target.backend, **OPTIONS)
        right_spikes = reference.alif_step_(right_x, *right_states, **OPTIONS)
        spikes.backward(case.grad_spikes)
        right_spikes.backward(case.grad_spikes)
        assert_equal(spikes.detach(), right_spikes.detach())
        assert_equal(x.grad, right_x.grad)
        for mine, right in zip(states, right_states, strict=True):
            assert_equal(mine, right)


@pytest.mark.parametrize("wanted", ["m", "adaptation"])
def test_part_of_the_gradients(target, wanted):
    """One past wants its gradient, the spikes are used alone."""
    case = States.random((37,), torch.float32, target.device)

    def gradient(step):
        inputs = {name: getattr(case, name).detach().requires_grad_(name == wanted) for name in case._fields[:3]}
        spikes, _, _ = step(*inputs.values(), **OPTIONS)
        return torch.autograd.grad(spikes, inputs[wanted], case.grad_spikes)[0]

    assert_equal(gradient(lambda *a, **o: alif_step(*a, backend=target.backend, **o)), gradient(reference.alif_step))


def test_adaptation_alone_is_the_past_of_a_step(target):
    """Only the new adaptation is used: its gradient reaches the past and not the input."""
    case = States.random((37,), torch.float32, target.device)
    inputs = [t.detach().requires_grad_() for t in case[:3]]
    found, right = (
        torch.autograd.grad(outputs[2], inputs, case.grad_adaptation, allow_unused=True, materialize_grads=True)
        for outputs in (
            alif_step(*inputs, backend=target.backend, **OPTIONS),
            reference.alif_step(*inputs, **OPTIONS),
        )
    )
    assert not found[0].any()
    for mine, theirs in zip(found, right, strict=True):
        assert_equal(mine, theirs)


@attached_or_not
def test_plain_form_is_the_same_step(target, detach_reset):
    """Reset and adaptation as a step of their own, then the step without them: equal in every bit."""
    case = States.random((37,), torch.float32, target.device)
    shared = {name: OPTIONS[name] for name in ("beta", "rho")}

    def plain(x, m_prev, adaptation_prev):
        u, adaptation = alif_reset(
            m_prev, adaptation_prev, OPTIONS["threshold"], detach_reset=detach_reset, surrogate=Triangle(), **shared
        )
        spikes, m, same = alif_step(x, u, adaptation, advance=False, backend=target.backend, **OPTIONS)
        assert same is adaptation
        return spikes, m, adaptation

    inputs = [t.detach().requires_grad_() for t in case[:3]]
    outputs = plain(*inputs)
    found = (*(t.detach() for t in outputs), *torch.autograd.grad(outputs, inputs, case[3:]))
    assert_same(found, run(case, target, detach_reset=detach_reset))


def test_against_finite_differences():
    """Both states, but for what goes by way of spikes, are smooth on each side of the threshold."""
    x = torch.randn(7, dtype=torch.float64, requires_grad=True)
    away = (torch.rand(7, dtype=torch.float64) + 0.5) * torch.randn(7).sign()
    adaptation = torch.rand(7, dtype=torch.float64)
    m_prev = (0.6 + 0.7 * adaptation + away).requires_grad_()
    narrow = {"surrogate": Triangle(0.1), **OPTIONS}  # 0 where the membranes are
    for backend in ("reference", "cpu"):
        step = lambda *a: alif_step(*a, backend=backend, **narrow)[1:]  # noqa: B023, E731
        assert gradcheck(step, (x, m_prev, adaptation.requires_grad_()))


# λ = ½, Vth = 1, β = 1, ρ = ½. The adaptation goes to ½·b + ½·s, the threshold is 1 + b:
#   b = 0      θ = 1      m = 1.25                      fires, leaves 0.25
#   b = 0.5    θ = 1.5    m = ½·0.25 + 1 = 1.125        (a LIF neuron would fire)
#   b = 0.25   θ = 1.25   m = ½·1.125 + 1 = 1.5625      fires, leaves 0.3125
#   b = 0.625  θ = 1.625  m = ½·0.3125 + ½ = 0.65625
GOLDEN = {"decay": 0.5, "threshold": 1.0, "beta": 1.0, "rho": 0.5}
INPUT = [1.25, 1.0, 1.0, 0.5]
MEMBRANES, ADAPTATIONS, FIRED = [1.25, 1.125, 1.5625, 0.65625], [0.0, 0.5, 0.25, 0.625], [1, 0, 1, 0]


@pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
def test_golden_trace(backend, online):
    m, adaptation, trace = torch.zeros(1), torch.zeros(1), []
    for x in INPUT:
        if online:
            spikes = alif_step_(torch.tensor([x]), m, adaptation, backend=backend, **GOLDEN)
        else:
            spikes, m, adaptation = alif_step(torch.tensor([x]), m, adaptation, backend=backend, **GOLDEN)
        trace.append((m.item(), adaptation.item(), spikes.item()))
    assert trace == list(zip(MEMBRANES, ADAPTATIONS, FIRED, strict=True))


# Two steps of it. Upstream: 2 on the first spike, -4 on the second, 1 on the final membrane, 2 on the final adaptation.
# Second step: m2 - θ2 = -0.375, surrogate 0.625, f = -4·0.625 = -2.5: dm2 = 1 - 2.5 = -1.5, db2 = 2 + 2.5 = 4.5.
# Into the past, where m1 - θ1 = 0.25, surrogate 0.75: du1 = ½·-1.5 = -0.75, and by way of the spike
#   attached e = (½·4.5 + 0.75·θ1)·0.75 = 2.25     dm1 = -0.75 + 2.25 = 1.5         db1 = ½·4.5 + (0.75 - 2.25) = 0.75
#   detached e = ½·4.5·0.75 = 1.6875               dm1 = -0.75 + 1.6875 = 0.9375    db1 = ½·4.5 - 1.6875 = 0.5625
# First step: f = 2·0.75 = 1.5 is added to dm1 and taken from db1. The state before it is out of the triangle's reach.
GRADIENTS = {False: (3.0, -1.5, 1.5, -0.375), True: (2.4375, -1.5, 1.21875, -0.46875)}


@attached_or_not
def test_golden_gradients_through_time(backend, detach_reset):
    options = GOLDEN | {"detach_reset": detach_reset, "backend": backend}
    inputs = [torch.tensor([value], requires_grad=True) for value in (1.25, 1.0, 0.0, 0.0)]
    x1, x2, m, adaptation = inputs
    s1, m, adaptation = alif_step(x1, m, adaptation, **options)
    s2, m, adaptation = alif_step(x2, m, adaptation, **options)
    upstream = [torch.tensor([g]) for g in (2.0, -4.0, 1.0, 2.0)]
    found = torch.autograd.grad([s1, s2, m, adaptation], inputs, upstream)
    assert tuple(g.item() for g in found) == GRADIENTS[detach_reset]


def test_golden_online_gradients(backend):
    """The past is a constant: 2·0.75, then -4·0.625."""
    m, adaptation, found = torch.zeros(1), torch.zeros(1), []
    for current, upstream in ((1.25, 2.0), (1.0, -4.0)):
        x = torch.tensor([current], requires_grad=True)
        alif_step_(x, m, adaptation, backend=backend, **GOLDEN).backward(torch.tensor([upstream]))
        found.append(x.grad.item())
    assert found == [1.5, -2.5]


def test_spikes_over_the_input(target):
    case = States.random((1037,), torch.float32, target.device)
    for mine, over in zip(run_online(case, target), run_online(case, target, overwrite=True), strict=True):
        assert_equal(mine, over)


@pytest.mark.parametrize("n", [1, 8, 2051, 4096])
def test_bits(target, n):
    case = States.random((n,), torch.float32, target.device)
    online = alif_step_(case.x, case.m.clone(), case.adaptation.clone(), backend=target.backend, **OPTIONS)
    packed, *_ = alif_step(*case[:3], pack=True, backend=target.backend, **OPTIONS)
    for spikes in (online, packed):
        assert_equal(bits_of(spikes), pack_bits(spikes))
    plain, *_ = alif_step(*case[:3], backend=target.backend, **OPTIONS)
    assert bits_of(plain) is None


@pytest.mark.parametrize("order", ["channels_last", "mixed"])
def test_layouts(target, order):
    plain = States.random((2, 3, 4, 5), torch.float32, target.device)
    case = plain.map(lambda t: t.contiguous(memory_format=torch.channels_last))
    if order == "mixed":
        case = case._replace(adaptation=plain.adaptation, grad_m=plain.grad_m)
    assert_same(run(case, target), run(plain))
    if order == "channels_last":
        assert all(t.is_contiguous(memory_format=torch.channels_last) for t in run(case, target))
        assert_same(run_online(case, target), run_online(plain))
        assert_same(run_online(plain._replace(x=case.x), target), run_online(plain))  # only the input's order differs


def test_online_keeps_neither_input_nor_spikes(target):
    leaf = torch.randn(1000, device=target.device, requires_grad=True)
    x, m, adaptation = leaf + 1, torch.zeros_like(leaf.detach()), torch.zeros_like(leaf.detach())
    spikes = alif_step_(x, m, adaptation, backend=target.backend)
    assert spikes.grad_fn.saved_tensors == ()
    consumed = spikes + 1
    dead = [StorageWeakRef(t.untyped_storage()) for t in (x, spikes)]
    del x, spikes
    gc.collect()
    assert all(ref.expired() for ref in dead)
    consumed.backward(torch.randn_like(m))


@pytest.mark.parametrize("changed", ["m", "adaptation", "both, without gradient", "both, in inference mode"])
def test_backward_after_the_state_moved_on_raises(target, changed):
    case = States.random((37,), torch.float32, target.device)
    spikes = alif_step_(case.x.requires_grad_(), case.m, case.adaptation, backend=target.backend)
    if changed in ("m", "adaptation"):
        getattr(case, changed).add_(1)
    else:
        with torch.inference_mode("inference" in changed), torch.no_grad():
            alif_step_(torch.ones_like(case.m), case.m, case.adaptation, backend=target.backend)
    with pytest.raises(RuntimeError, match="online ALIF step was advanced or changed before that step's backward"):
        spikes.backward(case.grad_spikes)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("ill", ["x", "m", "grad_spikes", "grad_adaptation"])
def test_not_finite_stays_in_its_neuron(target, ill):
    healthy = States.random((40,), torch.float32, target.device)
    case = healthy.map(torch.clone)
    getattr(case, ill)[3:6] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    found, others = run(case, target), torch.ones(40, dtype=torch.bool)
    others[3:6] = False
    for mine, same, right in zip(found, run(case), run(healthy, target), strict=True):
        assert_equal(mine, same)
        assert_equal(mine[others], right[others])


def test_compiled():
    """Two steps with work around them, in one graph; and an online one."""

    def two_steps(x, m, adaptation):
        spikes, m, adaptation = alif_step(x * 2, m, adaptation, **OPTIONS)
        again, m, adaptation = alif_step(x + spikes, m, adaptation, **OPTIONS)
        return spikes, again, m, adaptation

    case = States.random((6, 7), torch.float32)
    inputs = [t.requires_grad_() for t in case[:3]]
    upstream = [torch.randn(6, 7) for _ in range(4)]
    torch._dynamo.reset()
    outputs = [step(*inputs) for step in (torch.compile(two_steps, fullgraph=True, backend="aot_eager"), two_steps)]
    for mine, theirs in zip(*outputs, strict=True):
        assert_equal(mine, theirs)
    grads = (torch.autograd.grad(out, inputs, upstream) for out in outputs)
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)

    def online(x, m, adaptation):
        return alif_step_(x * 2, m, adaptation, **OPTIONS) * 3

    results = []
    for step in (torch.compile(online, fullgraph=True, backend="aot_eager"), online):
        m, adaptation = case.m.detach().clone(), case.adaptation.detach().clone()
        spikes = step(case.x, m, adaptation)
        results.append((spikes, m, adaptation, torch.autograd.grad(spikes, case.x, upstream[0])[0]))
    for mine, theirs in zip(*results, strict=True):
        assert_equal(mine, theirs)


@pytest.mark.parametrize("step", [alif_step, alif_step_])
@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "the state has shape (4,), the input (3,): reset", {"m": torch.zeros(4)}),
        (ValueError, "the state has shape (4,), the input (3,): reset", {"adaptation": torch.zeros(4)}),
        (TypeError, "the state's dtype is torch.float16, torch.float32 input", {"adaptation": torch.zeros(3).half()}),
        (TypeError, "the input's dtype is torch.int64: pass float32", {"x": torch.zeros(3).long()}),
        (ValueError, "threshold is 0.0: it must be positive", {"threshold": 0.0}),
        (ValueError, "decay is 1.5: it must be between 0", {"decay": 1.5}),
        (ValueError, "beta is -0.1: it must be 0 (no adaptation) or positive and finite", {"beta": -0.1}),
        (ValueError, "rho is 1.5: it must be between 0 and 1", {"rho": 1.5}),
        (ValueError, "unknown surrogate 'step': pass one of", {"surrogate": "step"}),
        (ValueError, "unknown backend 'gpu': pass one of", {"backend": "gpu"}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_errors_are_one_sentence(step, error, message, change):
    given = {"x": torch.zeros(3), "m": torch.zeros(3), "adaptation": torch.zeros(3)} | change
    with pytest.raises(error) as raised:
        step(given.pop("x"), given.pop("m"), given.pop("adaptation"), **given)
    assert str(raised.value).startswith(message)
    assert str(raised.value).count(". ") == 0


def test_online_states_that_cannot_be_written_over():
    x, m = torch.zeros(3), torch.zeros(3)
    with pytest.raises(ValueError, match=r"^alif_step_ writes over its states, which must not require a gradient"):
        alif_step_(x, m, torch.zeros(3, requires_grad=True))
    with pytest.raises(ValueError, match=r"^alif_step_ needs dense states in one memory order, .*contiguous\(\)\.$"):
        alif_step_(x, m, torch.zeros(6)[::2])
