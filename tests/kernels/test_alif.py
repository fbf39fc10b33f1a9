"""What is ALIF's own: the adaptation. All else is tested with every neuron."""

import pytest
import torch

from stdl_engine.kernels.alif import alif_reset, alif_step, alif_step_, reference

from .compare import assert_equal
from .every_neuron import ALIF, Result, assert_same, choices, random, run

attached_or_not = pytest.mark.parametrize("detach_reset", [False, True], ids=["attached", "detached"])


def test_adaptation_alone_is_the_past_of_a_step(target):
    """Only the new adaptation is used: its gradient reaches the past and not the input."""
    given = random(ALIF, (37,), device=target.device).leaves()
    found, right = (
        torch.autograd.grad(outputs[2], given.operands, given.grad_states[1], allow_unused=True, materialize_grads=True)
        for outputs in (
            alif_step(*given.operands, backend=target.backend, **ALIF.options),
            reference.alif_step(*given.operands, **ALIF.options),
        )
    )
    assert not found[0].any()
    for mine, theirs in zip(found, right, strict=True):
        assert_equal(mine, theirs)


@pytest.mark.parametrize("choice", choices(ALIF)[:2], ids=str)
def test_plain_form_is_the_same_step(target, choice):
    """Reset and adaptation as a step of their own, then the step without them: equal in every bit."""
    given = random(ALIF, (37,), device=target.device)
    told = {"detach_reset": False} | choice.options(ALIF)
    shared = {name: ALIF.options[name] for name in ("threshold", "beta", "rho")}

    def plain(x, m_prev, adaptation_prev):
        u, adaptation = alif_reset(m_prev, adaptation_prev, **shared, **told)
        spikes, m, same = alif_step(x, u, adaptation, advance=False, backend=target.backend, **ALIF.options | told)
        assert same is adaptation
        return spikes, m, adaptation

    leaves = given.leaves()
    spikes, *states = plain(*leaves.operands)
    grads = torch.autograd.grad([spikes, *states], leaves.operands, [given.grad_spikes, *given.grad_states])
    found = Result(spikes.detach(), tuple(t.detach() for t in states), grads, None)
    assert_same(found, run(ALIF, given, target, **told))


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


@pytest.mark.parametrize("step", [alif_step, alif_step_])
@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "the state has shape (4,), the input (3,): reset", {"adaptation": torch.zeros(4)}),
        (TypeError, "the state's dtype is torch.float16, torch.float32 input", {"adaptation": torch.zeros(3).half()}),
        (ValueError, "beta is -0.1: it must be 0 (no adaptation) or positive and finite", {"beta": -0.1}),
        (ValueError, "rho is 1.5: it must be between 0 and 1", {"rho": 1.5}),
    ],
    ids=["shape", "dtype", "beta", "rho"],
)
def test_errors_are_one_sentence(step, error, message, change):
    given = {"adaptation": torch.zeros(3)} | change
    with pytest.raises(error) as raised:
        step(torch.zeros(3), torch.zeros(3), given.pop("adaptation"), **given)
    assert str(raised.value).startswith(message)
    assert str(raised.value).count(". ") == 0


def test_online_states_that_cannot_be_written_over():
    x, m = torch.zeros(3), torch.zeros(3)
    with pytest.raises(ValueError, match=r"^alif_step_ writes over its states, which must not require a gradient"):
        alif_step_(x, m, torch.zeros(3, requires_grad=True))
    with pytest.raises(ValueError, match=r"^alif_step_ needs dense states in one memory order, .*contiguous\(\)\.$"):
        alif_step_(x, m, torch.zeros(6)[::2])
