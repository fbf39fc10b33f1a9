"""FusedLIF as a layer: the state it carries, what becomes of it, and that it trains like other libraries' neurons."""

import copy
import io
import pickle

import pytest
import torch
from spikingjelly.activation_based import functional, neuron, surrogate
from torch import nn

from stdl_engine import ATan, FusedLIF, Sigmoid, Triangle, reset_states
from stdl_engine.kernels import bits_of
from stdl_engine.kernels.lif import reference

from .stepping import there_and_back

onlines = pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])


def sequence(steps: int = 3, *shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(steps, *(shape or (4, 5))) * scale + 0.5


def run(lif: nn.Module, xs: torch.Tensor) -> torch.Tensor:
    """One call a time step, from a state of nothing."""
    lif.reset()
    return torch.stack([lif(x) for x in xs])


@pytest.mark.parametrize("reset", ["soft", "hard", "none"])
@pytest.mark.parametrize("detach_reset", [False, True])
def test_gradient_through_time_is_the_references(detach_reset, reset):
    options = {"reset": reset, "reset_value": 0.2, "detach_reset": detach_reset, "scale": 0.8}
    xs, upstream = sequence().requires_grad_(), torch.randn(3, 4, 5)
    lif = FusedLIF(0.5, 0.9, surrogate=ATan(2.0), **options)
    found = run(lif, xs)
    m, spikes = torch.zeros(4, 5), []
    for x in xs:
        s, m = reference.lif_step(x, m, 0.5, 0.9, surrogate=ATan(2.0), **options)
        spikes.append(s)
    right = torch.stack(spikes)
    assert torch.equal(found, right)
    assert torch.equal(lif.membrane, m)
    mine, theirs = (torch.autograd.grad(out, xs, upstream)[0] for out in (found, right))
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_online_gradient_is_of_each_step_alone():
    lif, m = FusedLIF(0.5, online=True), torch.zeros(4, 5)
    for x in sequence():
        mine, theirs, upstream = x.clone().requires_grad_(), x.clone().requires_grad_(), torch.randn(4, 5)
        lif(mine).backward(upstream)
        reference.lif_step_(theirs, m, 0.5).backward(upstream)
        assert torch.equal(mine.grad, theirs.grad)
        assert torch.equal(lif.membrane, m)


@pytest.mark.parametrize("reset", ["soft", "hard", "none"])
@pytest.mark.parametrize("gradient", [False, True])
def test_online_and_offline_fire_alike(gradient, reset):
    xs = sequence(5).requires_grad_(gradient)
    online, offline = FusedLIF(0.5, reset=reset, online=True), FusedLIF(0.5, reset=reset)
    assert torch.equal(run(online, xs), run(offline, xs))
    assert torch.equal(online.membrane, offline.membrane)


def test_online_spikes_carry_their_bits():
    assert bits_of(FusedLIF(online=True)(torch.ones(8))).tolist() == [255]


@onlines
@pytest.mark.parametrize("gradient", [False, True])
def test_step_modes_agree(gradient, online):
    xs = sequence(4).requires_grad_(gradient)
    single, multi = FusedLIF(0.5, online=online), FusedLIF(0.5, online=online, step_mode="m")
    found = multi(xs)
    assert torch.equal(found, run(single, xs))
    assert torch.equal(multi.membrane, single.membrane)
    assert torch.equal(multi(xs), torch.stack([single(x) for x in xs]))  # the state goes on from call to call


@onlines
def test_gradient_of_a_whole_sequence(online):
    """In step mode "m" backward runs after all steps; online, each step's gradient is still of that step alone."""
    xs, upstream = sequence(4).requires_grad_(), torch.randn(4, 4, 5)
    FusedLIF(0.5, online=online, step_mode="m")(xs).backward(upstream)
    if online:
        single = FusedLIF(0.5, online=True)
        steps = [x.detach().requires_grad_() for x in xs]
        for x, grad in zip(steps, upstream, strict=True):
            single(x).backward(grad)
        expected = torch.stack([x.grad for x in steps])
    else:
        again = xs.detach().requires_grad_()
        run(FusedLIF(0.5), again).backward(upstream)
        expected = again.grad
    torch.testing.assert_close(xs.grad, expected, rtol=1e-6, atol=1e-6)


@onlines
def test_sequence_of_no_steps(online):
    lif = FusedLIF(online=online, step_mode="m")
    assert lif(torch.zeros(0, 4, 5)).shape == (0, 4, 5)
    assert lif.membrane is None


def use_form(lif: FusedLIF, form: str | None) -> None:
    """As learning rules do; an attribute of another name would be set in silence and test nothing."""
    assert lif.memory_form is None
    lif.memory_form = form


@onlines
@pytest.mark.parametrize("memory", ["lean", "paper"])
@pytest.mark.parametrize("detach_reset", [False, True])
@pytest.mark.parametrize("reset", ["soft", "hard", "none"])
def test_memory_forms_agree_to_the_last_bit(reset, detach_reset, memory, online):
    """Two steps, after which autograd has no sum of three to reorder."""
    xs, upstream, gradients, fired = sequence(2), torch.randn(2, 4, 5), [], []
    for form in (None, memory):
        lif = FusedLIF(0.3, 0.6, reset, ATan(2.0), online, reset_value=0.2, detach_reset=detach_reset)
        use_form(lif, form)
        steps = [x.detach().requires_grad_() for x in xs]
        outputs = there_and_back(lif, steps, upstream, at_once=online)
        gradients.append(torch.stack([x.grad for x in steps]))
        fired.append(torch.stack(outputs))
    assert torch.equal(*fired)
    assert torch.equal(*gradients)


def test_lean_memory_writes_bits():
    lif = FusedLIF()
    assert bits_of(lif(torch.ones(8, requires_grad=True))) is None
    use_form(lif, "lean")
    assert bits_of(lif(torch.ones(8, requires_grad=True))).tolist() == [255]


def test_lean_memory_may_write_over_the_input():
    lif, x = FusedLIF(online=True), torch.ones(8)
    lif.overwrite = True
    assert lif(x) is not x
    use_form(lif, "lean")
    assert lif(x) is x


def test_paper_memory_keeps_the_membrane_after_reset():
    lif, plain = FusedLIF(), FusedLIF()
    use_form(lif, "paper")
    for neuron_ in (lif, plain):
        neuron_(torch.tensor([1.5, 0.5]))
    assert plain.membrane.tolist() == [1.5, 0.5]
    assert lif.membrane.tolist() == [0.5, 0.5]


SPIKINGJELLY = {
    "hard": {"v_reset": 0.0},
    "soft": {"v_reset": None},
}


@pytest.mark.parametrize("reset", SPIKINGJELLY)
@pytest.mark.parametrize("detach_reset", [False, True], ids=["attached", "detached"])
@pytest.mark.parametrize("decay_input", [False, True])
@pytest.mark.parametrize("tau", [2.0, 3.0])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(Triangle(1.0), surrogate.PiecewiseQuadratic(alpha=1.0)), (Sigmoid(4.0), surrogate.Sigmoid(alpha=4.0))],
    ids=["triangle", "sigmoid"],
)
def test_same_as_spikingjelly(ours, theirs, tau, decay_input, detach_reset, reset):
    """In float64, where the two orders of the same sums agree to 15 digits."""
    scale = 1 / tau if decay_input else 1.0
    lif = FusedLIF(1 - 1 / tau, reset=reset, surrogate=ours, detach_reset=detach_reset, scale=scale)
    other = neuron.LIFNode(
        tau, decay_input, surrogate_function=theirs, detach_reset=detach_reset, step_mode="s", **SPIKINGJELLY[reset]
    )
    xs = (sequence(6, 50, scale=2.0).double() + 0.5).requires_grad_()
    upstream = torch.randn(6, 50, dtype=torch.float64)
    functional.reset_net(other)
    found, right = run(lif, xs), torch.stack([other(x) for x in xs])
    assert 0 < found.mean() < 1
    assert torch.equal(found, right)
    mine, their = (torch.autograd.grad(out, xs, upstream)[0] for out in (found, right))
    torch.testing.assert_close(mine, their, rtol=1e-12, atol=1e-12)


def test_spikingjellys_reset_net_resets():
    model = nn.Sequential(nn.Linear(3, 3), FusedLIF())
    model(torch.ones(2, 3))
    functional.reset_net(model)
    assert model[1].membrane is None


def test_reset_states_reaches_every_layer():
    model = nn.Sequential(FusedLIF(), nn.Sequential(nn.Identity(), FusedLIF(online=True)))
    model(torch.ones(3))
    reset_states(model)
    assert model[0].membrane is None
    assert model[1][1].membrane is None


def test_detach_state_cuts_the_history_only():
    lif, xs = FusedLIF(0.5), sequence(2).requires_grad_()
    lif(xs[0])
    before = lif.membrane.detach().clone()
    lif.detach_state()
    assert torch.equal(lif.membrane, before)
    lif(xs[1]).backward(torch.randn(4, 5))
    assert not xs.grad[0].any()
    FusedLIF().detach_state()  # of nothing is nothing


@onlines
@pytest.mark.parametrize("step_mode", ["s", "m"])
def test_changed_shape_is_refused(step_mode, online):
    lif = FusedLIF(online=online, step_mode=step_mode)
    lif(torch.ones(2, 4, 5))
    shape = (4, 5) if step_mode == "m" else (2, 4, 5)
    other = (4, 6) if step_mode == "m" else (2, 4, 6)
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the whole message is compared
        lif(torch.ones(2, 4, 6))
    assert str(raised.value) == (
        f"FusedLIF holds the state of input {shape} and got {other}: call reset_states(model) before a new sequence."
    )
    reset_states(lif)
    lif(torch.ones(2, 4, 6))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_integer_input_is_refused(dtype):
    with pytest.raises(TypeError, match=r"^FusedLIF got torch\.\w+ input: pass float32, .*example x\.float\(\)\.$"):
        FusedLIF()(torch.ones(3, dtype=dtype))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": -1.0}, "threshold is -1.0: it must be positive and finite, for example 1.0."),
        ({"threshold": 0.0}, "threshold is 0.0: it must be positive and finite, for example 1.0."),
        ({"decay": 1.5}, "decay is 1.5: it must be between 0 (no memory) and 1 (no leak), for example 0.1."),
        ({"reset": "zero"}, "unknown reset 'zero': pass one of soft, hard, none."),
        ({"backend": "gpu"}, "unknown backend 'gpu': pass one of auto, triton, cpu, reference."),
        (
            {"step_mode": "multi"},
            'unknown step_mode \'multi\': pass "s" (one time step per call) or "m" (input [T, ...]).',
        ),
        (
            {"surrogate": "step"},
            "unknown surrogate 'step': pass one of triangle, rectangle, sigmoid, atan, piecewise_exp, softsign, "
            "superspike, erf, or an object such as Triangle(1.0).",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_bad_parameters_are_refused_when_built(options, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the whole message is compared
        FusedLIF(**options)
    assert str(raised.value) == message


def test_step_before_the_last_ones_backward_is_refused():
    lif, xs = FusedLIF(online=True), sequence(2).requires_grad_()
    first = lif(xs[0])
    lif(xs[1])
    with pytest.raises(RuntimeError, match="or use online=False"):
        first.backward(torch.randn(4, 5))


def test_reset_before_the_last_ones_backward_is_fine():
    """The graph holds the old state; the new sequence has one of its own."""
    lif, x, upstream = FusedLIF(online=True), torch.full((5,), 0.75, requires_grad=True), torch.randn(5)
    spikes = lif(x)
    lif.reset()
    lif(torch.ones(5))
    spikes.backward(upstream)
    assert torch.equal(x.grad, 0.75 * upstream)


@onlines
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype, online):
    model = nn.Sequential(nn.Linear(6, 8), FusedLIF(0.5, online=online), nn.Linear(8, 3))
    lif, seen = model[1], []
    lif.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0].dtype, output.dtype)))
    outputs = []
    for _ in range(3):
        with torch.autocast("cpu", dtype):
            outputs.append(model(torch.randn(4, 6)))
        if online:
            outputs[-1].backward(torch.randn(4, 3).to(dtype))
    if not online:
        torch.autograd.backward(outputs, [torch.randn(4, 3).to(dtype) for _ in outputs])
    assert seen == [(dtype, dtype)] * 3
    assert lif.membrane.dtype == torch.float32
    assert model[0].weight.grad.dtype == torch.float32
    assert model[0].weight.grad.isfinite().all()
    assert model[0].weight.grad.any()


@onlines
def test_conv_under_autocast_keeps_channels_last(online):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), FusedLIF(online=online)).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        spikes = model(torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last))
    assert spikes.dtype == torch.bfloat16
    assert spikes.is_contiguous(memory_format=torch.channels_last)
    assert model[1].membrane.is_contiguous(memory_format=torch.channels_last)
    spikes.backward(torch.randn_like(spikes))


@onlines
def test_to_double_and_back(online):
    lif, xs = FusedLIF(0.5, online=online), sequence()
    lif(xs[0])
    state = lif.membrane.clone()
    assert lif.double() is lif
    assert lif.membrane.dtype == torch.float64
    assert torch.equal(lif.membrane, state.double())
    lif(xs[1].double())
    lif.float()
    assert lif.membrane.dtype == torch.float32
    lif(xs[2])


@pytest.mark.parametrize("convert", [nn.Module.half, nn.Module.bfloat16], ids=["half", "bfloat16"])
def test_half_leaves_the_state_exact(convert):
    lif = FusedLIF(0.5)
    lif(torch.tensor([0.1, 1 / 3]))
    convert(lif)
    assert lif.membrane.dtype == torch.float32
    assert torch.equal(lif.membrane, torch.tensor([0.1, 1 / 3]))
    dtype = torch.float16 if convert is nn.Module.half else torch.bfloat16
    assert lif(torch.ones(2, dtype=dtype)).dtype == dtype


def test_to_nowhere_keeps_the_history():
    """A .to() that has nothing to do in the middle of a sequence must not cut its gradient."""
    lif, xs, upstream = FusedLIF(0.5), sequence(2).requires_grad_(), torch.randn(4, 5)
    lif(xs[0])
    lif.to("cpu").float()
    found = torch.autograd.grad(lif(xs[1]), xs, upstream)[0]
    assert found[0].any()
    assert torch.equal(found, torch.autograd.grad(run(FusedLIF(0.5), xs)[1], xs, upstream)[0])


def test_to_another_device_takes_the_state_along():
    lif = FusedLIF()
    lif.to("meta")  # no state yet
    assert lif.membrane is None
    lif(torch.ones(3))
    assert lif.to("meta").membrane.device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm GPU")
@onlines
def test_on_a_gpu(online):
    xs = sequence()
    lif = FusedLIF(0.5, online=online)
    first = lif(xs[0])
    lif.cuda()
    rest = torch.stack([lif(x.cuda()) for x in xs[1:]]).cpu()
    assert torch.equal(torch.cat([first[None], rest]), run(FusedLIF(0.5), xs))


@onlines
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_go_on_from_the_same_state(duplicate, online):
    """In the middle of a sequence, with a graph on the state."""
    xs = sequence()
    model = nn.Sequential(nn.Linear(5, 5), FusedLIF(0.5, surrogate=ATan(1.5), online=online))
    model(xs[0])
    other = duplicate(model)
    assert torch.equal(other[1].membrane, model[1].membrane)
    assert not other[1].membrane.requires_grad
    kept = other[1].membrane.clone()
    right = model(xs[1])
    assert torch.equal(other[1].membrane, kept), "each has its own state"
    found = other(xs[1])
    assert torch.equal(found, right)
    assert repr(other) == repr(model)
    found.backward(torch.randn_like(found))


@onlines
def test_state_is_not_saved(online):
    model = nn.Sequential(nn.Linear(5, 5), FusedLIF(online=online))
    model(sequence()[0])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert set(saved) == {"0.weight", "0.bias"}
    fresh = nn.Sequential(nn.Linear(5, 5), FusedLIF(online=online))
    fresh.load_state_dict(saved)
    assert fresh[1].membrane is None
    assert not list(model[1].parameters())
    assert not list(model[1].buffers())


def test_replicas_have_no_state():
    """What nn.DataParallel makes for each device, at every call."""
    model = FusedLIF(0.5, online=True)
    model(torch.ones(3))
    replica = model._replicate_for_data_parallel()
    assert replica.membrane is None
    assert torch.equal(replica(torch.ones(5)), torch.ones(5))
    assert model.membrane.shape == (3,)
    assert replica.decay == 0.5


def test_extra_repr():
    assert repr(FusedLIF()) == (
        "FusedLIF(decay=0.1, threshold=1.0, reset=soft, surrogate=Triangle(gamma=1.0), online=False, step_mode='s', "
        "backend='auto')"
    )
    full = FusedLIF(0.5, 2.0, "hard", "atan", True, "m", "cpu", reset_value=-1.0, detach_reset=True, scale=0.5)
    assert repr(full) == (
        "FusedLIF(decay=0.5, threshold=2.0, reset=hard to -1.0, surrogate=ATan(alpha=2.0), scale=0.5, "
        "detach_reset=True, online=True, step_mode='m', backend='cpu')"
    )


@onlines
def test_reference_backend(online):
    xs = sequence().requires_grad_()
    assert torch.equal(run(FusedLIF(online=online, backend="reference"), xs), run(FusedLIF(online=online), xs))


@onlines
def test_inference_mode(online):
    xs = sequence()
    expected = run(FusedLIF(0.5), xs)
    lif = FusedLIF(0.5, online=online)
    with torch.inference_mode():
        assert torch.equal(run(lif, xs), expected)
    lif.reset()
    spikes = lif(xs[0].clone().requires_grad_())  # and training again
    spikes.backward(torch.randn_like(spikes))


def test_trains():
    """A step against the gradient makes a small network's loss smaller."""
    model = nn.Sequential(nn.Linear(6, 32), FusedLIF(0.5, step_mode="m"), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    x = torch.randn(64, 6)
    y = (x.sum(1) > 0).long()
    losses = []
    for _ in range(30):
        reset_states(model)
        loss = nn.functional.cross_entropy(model(x.expand(4, 64, 6)).mean(0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
