"""The PLIF step on every backend against the reference: spikes, state and every gradient, the decay's above all."""

import gc

import pytest
import torch
from torch.autograd import gradcheck
from torch.multiprocessing.reductions import StorageWeakRef

from stdl_engine.kernels import bits_of
from stdl_engine.kernels.bits.reference import pack as pack_bits
from stdl_engine.kernels.cpu_threads import CHUNK
from stdl_engine.kernels.plif import plif_step, reference

from .compare import RESETS, TARGETS, TOLERANCE, Case, Target, assert_equal, assert_near, on_targets_and_dtypes
from .test_golden import INPUT, TRACES

# No number is exact in binary: what a backend rounds differently shows.
OPTIONS = {"threshold": 0.6, "scale": 0.8}
W = -0.37

SOFT, HARD, NONE = RESETS
VARIANTS = {
    "soft": SOFT,
    "soft-detached-scaled": SOFT | {"detach_reset": True, "scale_by_decay": True},
    "hard-scaled": HARD | {"scale_by_decay": True},
    "none": NONE,
}
variants = pytest.mark.parametrize("variant", VARIANTS)
scaled_by_decay = pytest.mark.parametrize("scale_by_decay", [False, True], ids=["scale", "scale_by_decay"])


def run(case: Case, target: Target | None = None, w: float | torch.Tensor = W, online: bool = False, **options):
    """Spikes, membrane and the gradients of x, m_prev (None online) and w; on the reference if no target is given."""
    x, m_prev = case.x.detach().requires_grad_(), case.m_prev.detach().requires_grad_(not online)
    w = torch.as_tensor(w, dtype=m_prev.dtype, device=x.device).clone().requires_grad_()
    if target is None:
        spikes, m = reference.plif_step(x, m_prev, w, **options)
    else:
        spikes, m = plif_step(x, m_prev, w, backend=target.backend, online=online, **options)
    if online:
        grad_x, grad_w = torch.autograd.grad(spikes, [x, w], case.grad_spikes)
        return spikes.detach(), m.detach(), grad_x, None, grad_w
    grads = torch.autograd.grad([spikes, m], [x, m_prev, w], [case.grad_spikes, case.grad_m])
    return spikes.detach(), m.detach(), *grads


def grad_w_by_neuron(case: Case, online: bool = False, **options) -> torch.Tensor:
    """What each neuron adds to the gradient of w, in float64."""
    case = case.map(torch.Tensor.double)
    return run(case, w=torch.full(case.x.shape, W, dtype=torch.float64), online=online, **options)[-1]


def assert_same(found, expected, terms: torch.Tensor, exact: bool = True) -> None:
    """Equal to the last bit, gradients near if not `exact`; that of w, a sum of `terms`, to rounding of the largest."""
    *found, grad_w = found
    *expected, _ = expected
    for place, (mine, right) in enumerate(zip(found, expected, strict=True)):
        if right is None:
            assert mine is None
        else:
            (assert_equal if exact or place < 2 else assert_near)(mine, right)
    assert grad_w.dtype == found[1].dtype
    assert grad_w.shape == ()
    assert (grad_w.double() - terms.sum()).abs() <= TOLERANCE[grad_w.dtype] * terms.abs().sum()


def check(case: Case, target: Target, exact: bool = True, **options) -> None:
    """The step and its online form against the reference, and w's gradient against float64."""
    for online in (False, True):
        found, right = (run(case, on, online=online, **options) for on in (target, None))
        assert_same(found, right, grad_w_by_neuron(case, online=online, **options), exact)


@variants
def test_step_equals_reference(target, variant):
    case = Case.random((37,), torch.float32, target.device, threshold=OPTIONS["threshold"])
    check(case, target, **OPTIONS, **VARIANTS[variant])


@on_targets_and_dtypes(lambda target, dtype: dtype == torch.bfloat16)
def test_low_precision(target, dtype):
    case = Case.random((37,), dtype, target.device, threshold=OPTIONS["threshold"])
    check(case, target, target.is_exact("triangle", dtype), **OPTIONS, scale_by_decay=True)


@pytest.mark.parametrize("shape", [(), (1,), (8,), (3, 5, 7), (1023,), (2049,), (4099,)], ids=str)
def test_any_shape(target, shape):
    """One neuron, and sizes on both sides of a byte, a tile and a block."""
    check(Case.random(shape, torch.float32, target.device), target)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_more_than_a_chunk(threads):
    """On any number of threads the sum over all neurons is the same to the last bit."""
    case = Case.random((3 * CHUNK + 77,), torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = [run(case, TARGETS[0]) for _ in range(3)]
    torch.set_num_threads(1)
    right = run(case, TARGETS[0])
    torch.set_num_threads(before)
    assert_same(found[0], run(case), grad_w_by_neuron(case))
    for once in found:
        for mine, theirs in zip(once, right, strict=True):
            assert_equal(mine, theirs)


def test_no_neurons(target):
    spikes, m, grad_x, grad_m_prev, grad_w = run(Case.random((3, 0), torch.float32, target.device), target)
    assert spikes.shape == m.shape == grad_x.shape == grad_m_prev.shape == (3, 0)
    assert grad_w == 0


@pytest.mark.parametrize("variant", ["soft", "hard-scaled"])
def test_sequence_equals_reference(target, variant):
    """Three steps through time; near, not equal, because autograd adds up a membrane's gradients in another order."""
    options = OPTIONS | VARIANTS[variant]
    inputs = [Case.random((29,), torch.float32, target.device) for _ in range(3)]

    def sequence(step, change=lambda t: t):
        xs, m0 = [change(case.x).detach().requires_grad_() for case in inputs], change(inputs[0].m_prev).detach()
        w = torch.tensor(W, dtype=m0.dtype, device=m0.device, requires_grad=True)
        m, spikes = m0.requires_grad_(), []
        for x in xs:
            s, m = step(x, m, w)
            spikes.append(s)
        upstream = [*(change(case.grad_spikes) for case in inputs), change(inputs[0].grad_m)]
        return torch.stack(spikes), m, torch.autograd.grad([*spikes, m], [*xs, m0, w], upstream)

    spikes, m, grads = sequence(lambda *a: plif_step(*a, backend=target.backend, **options))
    right_spikes, right_m, right_grads = sequence(lambda *a: reference.plif_step(*a, **options))
    assert_equal(spikes, right_spikes)
    assert_equal(m, right_m)
    for gradient, right in zip(grads[:-1], right_grads[:-1], strict=True):
        assert_near(gradient, right)
    *_, (*_, exact) = sequence(lambda *a: reference.plif_step(*a, **options), torch.Tensor.double)
    assert grads[-1].item() == pytest.approx(exact.item(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("wanted", "used"), [("m_prev", "spikes"), ("w", "spikes"), ("w", "m")])
def test_part_of_the_gradients(target, used, wanted):
    """Only one output is used, or only one input wants its gradient."""
    case = Case.random((37,), torch.float32, target.device)

    def gradient(step):
        given = {"x": case.x, "m_prev": case.m_prev, "w": torch.tensor(W, device=target.device)}
        given = {name: t.detach().requires_grad_(name == wanted) for name, t in given.items()}
        spikes, m = step(*given.values())
        output, upstream = (spikes, case.grad_spikes) if used == "spikes" else (m, case.grad_m)
        return torch.autograd.grad(output, given[wanted], upstream)[0]

    found = gradient(lambda *a: plif_step(*a, backend=target.backend, **OPTIONS))
    right = gradient(lambda *a: reference.plif_step(*a, **OPTIONS))
    if wanted == "w":
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    else:
        assert_equal(found, right)


def test_decay_that_rounds_to_one_has_a_finite_gradient(target):
    """sigmoid(40) is 1 in float32: with `scale_by_decay` the input has no part any more, and w stays where it is."""
    case = Case.random((37,), torch.float32, target.device)
    *_, grad_x, _, grad_w = run(case, target, w=40.0, scale_by_decay=True)
    assert not grad_x.any()
    assert grad_w.isfinite()
    m_prev = torch.where(case.m_prev >= 1, case.m_prev - 1, case.m_prev)
    assert_equal(run(case, target, w=40.0, scale_by_decay=True)[1], m_prev)


@scaled_by_decay
def test_against_finite_differences(scale_by_decay):
    """The membrane with its reset detached is smooth in the input, the past and w."""
    x = torch.randn(7, dtype=torch.float64, requires_grad=True)
    m_prev = (1.0 + (torch.rand(7, dtype=torch.float64) + 0.1) * torch.randn(7).sign()).requires_grad_()
    w = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    options = {"scale": 1.3, "scale_by_decay": scale_by_decay, "detach_reset": True}
    for backend in ("reference", "cpu") if scale_by_decay else ("reference",):
        assert gradcheck(lambda *a: plif_step(*a, backend=backend, **options)[1], (x, m_prev, w))  # noqa: B023


@pytest.mark.parametrize("reset", TRACES)
@pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
def test_golden_trace(backend, online, reset):
    """sigmoid(0) is ½: the membranes that were worked out by hand for LIF."""
    m, w, membranes, fired = torch.zeros(1), torch.zeros(()), [], []
    for x in INPUT:
        options = {"reset": reset, "reset_value": 0.25, "backend": backend, "online": online}
        spikes, m = plif_step(torch.tensor([x]), m, w, **options)
        membranes.append(m.item())
        fired.append(spikes.item())
    assert (membranes, fired) == TRACES[reset]


# Two steps, λ = ½, Vth = 1, soft reset: m1 = 1.25 fires and leaves u1 = 0.25, m2 = 1.125. Upstream: 2 on the first
# spike, -4 on the second, 1 on the final membrane; the triangle gives dm2 = -2.5 and dm1 = 1.1875 (test_golden.py).
# dλ = dm2·u1 + dm1·0 = -0.625, and dw = λ(1-λ)·dλ = -0.15625.
# Online dm2 = -4·0.875 = -3.5: dλ = -0.875 and dw = -0.21875.
# With the input scaled by 1-λ = ½ inputs of 2.5 and 2 give the same membranes, and
# dλ = dm2·(u1 - 2) + dm1·(0 - 2.5) = 4.375 - 2.96875 = 1.40625: dw = 0.3515625.
# Online dm1 = 2·0.75: dλ = -3.5·(0.25 - 2) + 1.5·-2.5 = 2.375: dw = 0.59375.
GOLDEN = {(False, False): -0.15625, (False, True): -0.21875, (True, False): 0.3515625, (True, True): 0.59375}


@pytest.mark.parametrize(("scale_by_decay", "online"), GOLDEN)
def test_golden_gradient(backend, scale_by_decay, online):
    w, m, outputs = torch.zeros((), requires_grad=True), torch.zeros(1), []
    for x in (2.5, 2.0) if scale_by_decay else (1.25, 1.0):
        spikes, m = plif_step(torch.tensor([x]), m, w, scale_by_decay=scale_by_decay, online=online, backend=backend)
        outputs.append(spikes)
    upstream = [torch.tensor([g]) for g in (2.0, -4.0, 1.0)]
    if online:
        assert not m.requires_grad
        torch.autograd.backward(outputs, upstream[:2])
    else:
        torch.autograd.backward([*outputs, m], upstream)
    assert w.grad.item() == GOLDEN[scale_by_decay, online]


def test_spikes_over_the_input(target):
    case = Case.random((1037,), torch.float32, target.device, threshold=OPTIONS["threshold"])
    results = []
    for overwrite in (False, True):
        leaf = case.x.clone().requires_grad_()
        w = torch.tensor(W, dtype=case.m_prev.dtype, device=target.device, requires_grad=True)
        x = leaf * 1
        options = {"online": True, "pack": True, "overwrite": overwrite, "backend": target.backend, **OPTIONS}
        spikes, m = plif_step(x, case.m_prev, w, **options)
        assert (spikes.data_ptr() == x.data_ptr()) == overwrite
        assert not m.requires_grad
        packed = bits_of(spikes)
        grads = torch.autograd.grad(spikes, [leaf, w], case.grad_spikes)
        results.append((spikes.detach(), m, packed, *grads))
    for mine, over in zip(*results, strict=True):
        assert_equal(mine, over)
    assert_equal(results[0][2], pack_bits(results[0][0]))


@pytest.mark.parametrize("order", ["channels_last", "sliced"])
def test_layouts(target, order):
    """Shared dense layouts are kept; an input with gaps is copied, and not written over."""
    plain = Case.random((2, 3, 4, 5), torch.float32, target.device)
    if order == "channels_last":
        case = plain.map(lambda t: t.contiguous(memory_format=torch.channels_last))
    else:
        case = plain.map(lambda t: torch.stack([t, t + 1], dim=-1)[..., 0])
    check(case, target)
    found = run(case, target)
    for mine, right in zip(found[:-1], run(plain, target)[:-1], strict=True):
        assert_equal(mine, right)
    if order == "channels_last":
        assert all(t.is_contiguous(memory_format=torch.channels_last) for t in found[:-1])
    x = case.x.clone(memory_format=torch.preserve_format) if order == "channels_last" else case.x
    w = torch.zeros((), device=target.device)
    spikes, _ = plif_step(x, case.m_prev, w, online=True, overwrite=True, backend=target.backend)
    assert (spikes.data_ptr() == x.data_ptr()) == (order == "channels_last")


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_online_keeps_the_past_only_for_w(target, frozen):
    """Neither input nor spikes; and the old membrane only where w wants a gradient."""
    leaf = torch.randn(1000, device=target.device, requires_grad=True)
    w = torch.zeros((), device=target.device, requires_grad=not frozen)
    x, m_prev = leaf + 1, torch.randn(1000, device=target.device)
    spikes, m = plif_step(x, m_prev, w, online=True, backend=target.backend)
    consumed = spikes + 1
    gone, past = [StorageWeakRef(t.untyped_storage()) for t in (x, spikes)], StorageWeakRef(m_prev.untyped_storage())
    del x, spikes, m_prev
    gc.collect()
    assert all(ref.expired() for ref in gone)
    assert past.expired() == frozen
    consumed.backward(torch.randn_like(m))
    gc.collect()
    assert past.expired()


def test_changed_membrane_is_noticed(target):
    x, w = torch.randn(9, device=target.device), torch.zeros((), device=target.device, requires_grad=True)
    spikes, m = plif_step(x, torch.zeros_like(x), w, online=True, backend=target.backend)
    m.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        spikes.backward(torch.randn_like(m))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("ill", ["x", "m_prev", "grad_spikes"])
def test_not_finite_stays_in_its_neuron(target, ill):
    """And reaches w as in the reference: not by an input, for which the triangle is 0."""
    healthy = Case.random((40,), torch.float32, target.device)
    case = healthy.map(torch.clone)
    getattr(case, ill)[3:6] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    (*found, grad_w), (*reference_found, reference_grad_w) = run(case, target), run(case)
    others = torch.ones(40, dtype=torch.bool)
    others[3:6] = False
    for mine, same, right in zip(found, reference_found, run(healthy, target)[:-1], strict=True):
        assert_equal(mine, same)
        assert_equal(mine[others], right[others])
    assert grad_w.isnan() == reference_grad_w.isnan() == (ill != "x")


def test_compiled():
    """Two steps with work around them, in one graph."""

    def two_steps(x, m, w):
        spikes, m = plif_step(x * 2, m, w)
        again, m = plif_step(x + spikes, m, w, threshold=0.7)
        return spikes, again, m

    case = Case.random((6, 7), torch.float32)
    inputs = [case.x.requires_grad_(), case.m_prev.requires_grad_(), torch.tensor(W, requires_grad=True)]
    upstream = [case.grad_spikes, case.grad_m, torch.randn(6, 7)]
    torch._dynamo.reset()
    outputs = [step(*inputs) for step in (torch.compile(two_steps, fullgraph=True, backend="aot_eager"), two_steps)]
    for mine, theirs in zip(*outputs, strict=True):
        assert_equal(mine, theirs)
    grads = (torch.autograd.grad(out, inputs, upstream) for out in outputs)
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "the state has shape (4,), the input (3,): reset", {"m_prev": torch.zeros(4)}),
        (TypeError, "the state's dtype is torch.float64, torch.float32 input", {"m_prev": torch.zeros(3).double()}),
        (TypeError, "the input's dtype is torch.int64: pass float32", {"x": torch.zeros(3).long()}),
        (ValueError, "w has shape (2,) and dtype torch.float32: it must be one floating", {"w": torch.zeros(2)}),
        (ValueError, "w has shape () and dtype torch.int64: it must be one floating", {"w": torch.tensor(1)}),
        (ValueError, "w is on meta, the input on cpu: move one", {"w": torch.zeros((), device="meta")}),
        (ValueError, "threshold is 0.0: it must be positive", {"threshold": 0.0}),
        (ValueError, "unknown reset 'zero': pass one of soft, hard, none.", {"reset": "zero"}),
        (ValueError, "unknown surrogate 'step': pass one of", {"surrogate": "step"}),
        (ValueError, "unknown backend 'gpu': pass one of", {"backend": "gpu"}),
        (ValueError, "overwrite=True is for the online step: pass online=True", {"overwrite": True}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_errors_are_one_sentence(error, message, change):
    given = {"x": torch.zeros(3), "m_prev": torch.zeros(3), "w": torch.zeros(())} | change
    with pytest.raises(error) as raised:
        plif_step(given.pop("x"), given.pop("m_prev"), given.pop("w"), **given)
    assert str(raised.value).startswith(message)
    assert str(raised.value).count(". ") == 0
