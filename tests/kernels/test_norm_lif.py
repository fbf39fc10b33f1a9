"""Batch norm, alone and in one pass with the neuron after it: the norm against PyTorch's in float64, and the one pass
against norm and neuron one after the other, to the last bit."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.library import opcheck

from stdl_engine.kernels import bits_of, lif_sequence, plif_sequence
from stdl_engine.kernels.bits.reference import pack
from stdl_engine.kernels.lif import reference as lif_reference
from stdl_engine.kernels.lif.ops import Options
from stdl_engine.kernels.norm_lif import Pending, fire, norm_statistics, reference, table_of, takes
from stdl_engine.kernels.norm_lif.operands import INVERSE, MEAN
from stdl_engine.kernels.norm_lif.sums import attach, sums_of

from .compare import TARGETS
from .every_neuron import PLIF

LAST, CONTIGUOUS = LAYOUTS = torch.channels_last, torch.contiguous_format
SURROGATE = "triangle"
RESETS = ({"reset": "soft"}, {"reset": "hard", "reset_value": 0.25}, {"reset": "none"})


def map_of(shape, dtype=torch.float32, mean=0.3, deviation=1.7, layout=LAST) -> Tensor:
    return (torch.randn(shape) * deviation + mean).to(dtype).contiguous(memory_format=layout)


def pending_of(x, weight=None, bias=None, groups=1, backend="auto") -> Pending:
    table = norm_statistics(x.detach(), _detached(weight), _detached(bias), None, None, groups, [], 1e-5, backend)
    return Pending.after(x, table, weight, bias, constant=False, backend=backend)


def _detached(t):
    return None if t is None else t.detach()


def rms(t: Tensor) -> float:
    return t.double().square().mean().sqrt().item()


class TestNorm:
    """Alone, against PyTorch in float64."""

    @pytest.mark.parametrize("layout", LAYOUTS, ids=str)
    @pytest.mark.parametrize("mean", [0.0, 40.0])
    @pytest.mark.parametrize(
        "shape",
        [(3, 8, 5, 7), (8, 16, 32, 32), (4, 64, 3, 3), (2, 512, 2, 1), (1, 2048, 3, 5), (3, 24, 6, 5), (5, 200, 9, 9),
         (2, 1544, 3, 3), (1, 8, 130, 97)],
        ids=str,
    )  # fmt: skip
    def test_error_is_that_of_pytorch(self, shape, mean, layout):
        x = map_of(shape, mean=mean, layout=layout)
        weight, bias, grad = torch.randn(shape[1]), torch.randn(shape[1]), torch.randn(shape)

        def gradients(run, dtype):
            given = [t.detach().to(dtype).requires_grad_() for t in (x, weight, bias)]
            y = run(*given)
            y.backward(grad.to(dtype))
            return [y.detach(), *(t.grad for t in given)]

        exact = gradients(reference.normalised, torch.float64)
        theirs = gradients(reference.normalised, torch.float32)
        ours = gradients(lambda *given: pending_of(*given).dense(), torch.float32)
        for found, plain, true in zip(ours, theirs, exact, strict=True):
            assert found.dtype == torch.float32
            assert rms(found - true) <= 2 * rms(plain - true) + 1e-7 * rms(true)

    @settings(max_examples=30, deadline=None)
    @given(
        st.integers(1, 4), st.integers(1, 40), st.integers(1, 3), st.tuples(st.integers(1, 11), st.integers(2, 11)),
        st.booleans(), st.sampled_from(LAYOUTS),
    )  # fmt: skip
    def test_any_shape(self, samples, eights, groups, size, affine, layout):
        """Statistics of each part of the batch, and rows of a tile that the map does not fill."""
        x = map_of((samples * groups, 8 * eights, *size), layout=layout)
        parameters = [torch.randn(8 * eights) for _ in range(2)] if affine else [None, None]
        exact = reference.normalised(
            x.double(), *(None if p is None else p.double() for p in parameters), groups=groups
        )
        # A mean of values that are close together is rounded, and then divided by how far they are apart.
        apart = (x.double().unflatten(0, (groups, -1)).var((1, 3, 4), correction=0) + 1e-5).sqrt().min()
        gain = 1 if parameters[0] is None else parameters[0].abs().max()
        rounding = 2 * torch.finfo(x.dtype).eps * x.abs().max() * gain / apart
        assert (pending_of(x, *parameters, groups).dense() - exact).abs().max() <= max(1e-5, rounding)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_low_precision(self, dtype):
        """Rounded once, at the end."""
        x, weight, bias = map_of((4, 32, 6, 6), dtype), torch.randn(32), torch.randn(32)
        exact = reference.normalised(x.double(), weight.double(), bias.double())
        found = pending_of(x, weight, bias).dense()
        assert found.dtype == dtype
        assert (found - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()

    def test_running_statistics(self):
        """As those of `nn.BatchNorm2d` that sees the parts one after the other."""
        x, layer = map_of((6, 16, 5, 5)), torch.nn.BatchNorm2d(16).double()
        for part in x.double().chunk(3):
            layer(part)
        mean, var = torch.zeros(16), torch.ones(16)
        norm_statistics(x, None, None, mean, var, 3, [0.1, 0.1, 0.1], 1e-5, "auto")
        torch.testing.assert_close(mean.double(), layer.running_mean, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(var.double(), layer.running_var, rtol=1e-6, atol=1e-7)

    def test_statistics_that_are_known(self):
        x, mean, var = map_of((4, 16, 5, 5)).requires_grad_(), torch.randn(16), torch.rand(16) + 0.5
        weight, bias = torch.randn(16, requires_grad=True), torch.randn(16, requires_grad=True)
        table = table_of(mean[None], var[None], weight.detach(), bias.detach(), 1e-5)
        grad = torch.randn(x.shape)
        Pending.after(x, table, weight, bias, constant=True).dense().backward(grad)
        exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
        y = torch.nn.functional.batch_norm(exact[0], mean.double(), var.double(), *exact[1:], False, 0.0, 1e-5)
        y.backward(grad.double())
        for found, true in zip((x, weight, bias), exact, strict=True):
            torch.testing.assert_close(found.grad.double(), true.grad, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("layout", LAYOUTS, ids=str)
    def test_a_corner_unlike_the_rest(self, layout):
        """Where pixels at the edge are all but typical, squares are not taken of differences to those."""
        x = map_of((4, 8, 64, 64), layout=layout)
        x[0, :, 0, :8] = 1000.0
        table, exact = norm_statistics(x, None, None, None, None, 1, [], 1e-5, "auto"), x.double()
        inverse = (exact.var((0, 2, 3), correction=0) + 1e-5).rsqrt()
        torch.testing.assert_close(table[0, INVERSE].double(), inverse, rtol=2e-6, atol=0)

    def test_not_a_number_stays_one(self):
        x = map_of((2, 8, 3, 3))
        x[0, 3, 1, 1] = float("nan")
        y = pending_of(x).dense()
        assert y[:, 3].isnan().all()
        assert not y[:, [0, 1, 2, 4, 5, 6, 7]].isnan().any()

    @pytest.mark.parametrize("layout", LAYOUTS, ids=str)
    def test_the_same_on_any_number_of_threads(self, layout):
        x, before, found = map_of((16, 24, 32, 32), layout=layout), torch.get_num_threads(), []
        grad = torch.randn(x.shape)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            given = x.clone(memory_format=layout).requires_grad_()
            pending_of(given).dense().backward(grad)
            found.append(given.grad)
        torch.set_num_threads(before)
        assert all(torch.equal(other, found[0]) for other in found[1:])


def run(
    fused, *, steps, groups, online, in_place=False, dense=False, adds="", learned=False, dtype=torch.float32,
    shape=(3, 16, 5, 6), layout=LAST, backend="auto", device="cpu", **options,
):  # fmt: skip
    """All results and gradients of a neuron after batch norm, in one pass or in two."""
    torch.manual_seed(1)
    x = map_of((shape[0] * steps, *shape[1:]), dtype, layout=layout).to(device).requires_grad_()
    weight, bias = (torch.randn(shape[1]).to(device).requires_grad_() for _ in range(2))
    m = (torch.randn(shape) * 0.8).contiguous(memory_format=layout).to(device).requires_grad_(not online)
    w = torch.tensor(-0.4, device=device, requires_grad=True) if learned else None
    spikes_before = (torch.rand(x.shape) < 0.3).to(dtype).contiguous(memory_format=layout).to(device).requires_grad_()
    pending, added = pending_of(x, weight, bias, groups, backend), None
    if adds == "map":
        added = map_of(x.shape, dtype, layout=layout).to(device).requires_grad_()
        pending = pending.plus(added)
    if adds == "bits":
        added = spikes_before
        pending = pending.plus_spikes(added, pack(added.detach()))
    options = {"threshold": 0.6, "scale": 0.8, "surrogate": SURROGATE} | options
    state = m.clone() if in_place else m
    if fused:
        told = {"reset": "soft", "reset_value": 0.0, "detach_reset": online, "backend": backend} | options
        chosen = Options.checked(0.5 if learned else 0.3, **told)
        spikes, bits, last = fire(pending, state, w, chosen, online=online, in_place=in_place, dense=dense)
    else:
        decay = w if learned else 0.3
        sequence = plif_sequence if learned else lif_sequence
        spikes, last = sequence(pending.dense(), state, decay, **options, pack=True, online=online)
        bits = pack(spikes.detach())
    grad_spikes, grad_m = torch.randn(x.shape).to(device, dtype), torch.randn(shape).to(device)
    ends = [(spikes, grad_spikes)] + ([] if online else [(last, grad_m)])
    torch.autograd.backward(*zip(*ends, strict=True))
    given = {"x": x, "weight": weight, "bias": bias, "m": m, "w": w, "added": added}
    gradients = {name: t.grad for name, t in given.items() if t is not None and t.requires_grad}
    if fused and dense:
        assert torch.equal(pack(spikes.detach()), bits)
    return {"bits": bits, "m": last.detach()} | gradients


def check(**choice) -> None:
    fused, plain = run(True, **choice), run(False, **choice | {"in_place": False})
    assert fused.keys() == plain.keys()
    # Statistics of several steps together are sums of other parts in one pass than in two.
    rounded = ("x", "weight", "bias") if choice["groups"] != choice["steps"] else ()
    for name in plain:
        if name in rounded:
            torch.testing.assert_close(fused[name], plain[name], rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(fused[name], plain[name]), name


class TestOnePass:
    """To the last bit what the two kernels give one after the other."""

    @pytest.mark.parametrize(("steps", "groups"), [(1, 1), (3, 3), (3, 1)])
    @pytest.mark.parametrize("online", [False, True], ids=["exact", "online"])
    @pytest.mark.parametrize("adds", ["", "map", "bits"])
    def test_lif(self, steps, groups, online, adds):
        for reset, dense in itertools.product(RESETS, (False, True)):
            check(steps=steps, groups=groups, online=online, adds=adds, dense=dense, **reset)

    @pytest.mark.parametrize("steps", [1, 3])
    @pytest.mark.parametrize("adds", ["", "map", "bits"])
    def test_over_the_state(self, steps, adds):
        for learned in (False, True):
            check(steps=steps, groups=steps, online=True, in_place=True, adds=adds, learned=learned)

    @pytest.mark.parametrize("steps", [1, 3])
    @pytest.mark.parametrize("online", [False, True], ids=["exact", "online"])
    def test_a_learned_decay(self, steps, online):
        for options in PLIF.variants.values():
            check(steps=steps, groups=steps, online=online, learned=True, **options)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("adds", ["", "map", "bits"])
    def test_low_precision(self, dtype, adds):
        check(steps=2, groups=2, online=False, adds=adds, dtype=dtype, dense=True)

    @pytest.mark.parametrize("detach_reset", [False, True])
    def test_detached_reset(self, detach_reset):
        check(steps=3, groups=3, online=False, detach_reset=detach_reset)

    def test_against_plain_pytorch_in_float64(self):
        """Gradients of everything, where no spike is at its threshold's rounding."""
        found = run(True, steps=3, groups=3, online=False, adds="map")
        torch.manual_seed(1)
        x = map_of((9, 16, 5, 6)).double().requires_grad_()
        weight, bias = (torch.randn(16).double().requires_grad_() for _ in range(2))
        m = (torch.randn(3, 16, 5, 6) * 0.8).contiguous(memory_format=LAST).double().requires_grad_()
        torch.rand(x.shape)
        added = map_of(x.shape).double().requires_grad_()
        spikes, last = reference.norm_steps(
            lif_reference.lif_step, x, m, weight, bias, added=added, groups=3, decay=0.3, threshold=0.6, scale=0.8
        )
        torch.autograd.backward([spikes, last], [torch.randn(x.shape).double(), torch.randn(m.shape).double()])
        for name, t in {"x": x, "weight": weight, "bias": bias, "m": m, "added": added}.items():
            torch.testing.assert_close(found[name].double(), t.grad, rtol=1e-4, atol=1e-4)
        assert torch.equal(found["bits"], pack(spikes.detach().float().contiguous(memory_format=LAST)))

    @pytest.mark.parametrize("layout", LAYOUTS, ids=str)
    @pytest.mark.parametrize("shape", [(2, 24, 6, 6), (3, 40, 32, 32), (2, 1000, 5, 4), (1, 8, 1, 50), (5, 72, 4, 4)])
    @pytest.mark.parametrize("adds", ["", "map", "bits"])
    def test_any_layout(self, shape, layout, adds):
        """Tiles that runs of pixels do not fill, and channels that are no power of two."""
        for steps, online in ((1, True), (2, False)):
            check(steps=steps, groups=steps, online=online, adds=adds, shape=shape, layout=layout, dense=True)

    @pytest.mark.parametrize("shape", [(2, 3, 4, 6), (4, 1, 4, 4)], ids=str)
    def test_few_channels_that_are_runs(self, shape):
        check(steps=3, groups=3, online=False, adds="bits", shape=shape, layout=CONTIGUOUS, learned=True)

    def test_spikes_that_are_not_written_take_no_memory(self):
        pending = pending_of(map_of((2, 8, 4, 4)))
        m = torch.zeros(2, 8, 4, 4).contiguous(memory_format=LAST)
        options = Options.checked(0.3, 1.0, "soft", 0.0, 1.0, True, SURROGATE, "auto")
        spikes, bits, _ = fire(pending, m, None, options, online=True, in_place=True, dense=False)
        assert spikes.shape == pending.shape
        assert spikes.untyped_storage().nbytes() == 4
        assert len(bits) == 2 * 8 * 16 // 8
        assert bits_of(spikes) is None


@pytest.mark.skipif(len(TARGETS) < 2, reason="Triton is for Linux only")
class TestTriton:
    """The Triton kernels beside those of the CPU."""

    @pytest.mark.parametrize("backend", ["triton"])
    @pytest.mark.parametrize("adds", ["", "map", "bits"])
    @pytest.mark.parametrize(
        "choice",
        [
            {"steps": 1, "online": False},
            {"steps": 1, "online": False, "learned": True, "scale_by_decay": True, "reset": "none"},
            {"steps": 1, "online": False, "reset": "hard", "reset_value": 0.25, "dense": True},
            {"steps": 1, "online": True, "in_place": True},
            {"steps": 3, "online": True, "in_place": True, "dense": True},
            {"steps": 3, "online": True, "learned": True},
            {"steps": 3, "online": True, "groups": 1, "shape": (2, 8, 3, 5)},
            {"steps": 1, "online": True, "shape": (1, 512, 3, 1)},
            {"steps": 2, "online": True, "dtype": torch.float16, "dense": True},
            {"steps": 3, "online": False},
            {"steps": 4, "online": False, "groups": 2, "learned": True, "scale_by_decay": True, "dense": True},
            {"steps": 2, "online": False, "reset": "hard", "reset_value": 0.25, "detach_reset": True},
            {"steps": 3, "online": False, "shape": (2, 40, 5, 7)},
            {"steps": 1, "online": True, "shape": (2, 600, 2, 1), "in_place": True},
            {"steps": 1, "online": False, "shape": (3, 24, 4, 4), "learned": True},
            {"steps": 3, "online": False, "shape": (3, 5, 4, 6), "layout": CONTIGUOUS, "learned": True},
            {"steps": 1, "online": False, "shape": (2, 8, 24, 40), "layout": CONTIGUOUS, "dense": True},
            {"steps": 2, "online": True, "shape": (2, 3, 6, 4), "layout": CONTIGUOUS, "in_place": True},
        ],
        ids=lambda choice: "-".join(f"{k}={v}" for k, v in choice.items()),
    )
    def test_beside_the_cpu(self, backend, adds, choice):
        choice = {"groups": choice["steps"], "adds": adds} | choice
        found = run(True, backend=backend, device=TARGETS[1].device, **choice)
        expected = run(True, backend="cpu", **choice)
        assert found.keys() == expected.keys()
        near = {"rtol": 1e-2, "atol": 1e-2} if "dtype" in choice else {"rtol": 1e-4, "atol": 2e-5}
        assert torch.equal(found.pop("bits").cpu(), expected.pop("bits"))
        for name, value in expected.items():
            torch.testing.assert_close(found[name].cpu(), value, **near)

    @pytest.mark.parametrize("backend", ["triton"])
    @pytest.mark.parametrize(
        ("shape", "layout"),
        [
            ((3, 8, 5, 8), LAST), ((2, 64, 4, 4), LAST), ((1, 1024, 4, 2), LAST), ((3, 24, 24, 24), LAST),
            ((3, 8, 5, 8), CONTIGUOUS), ((2, 65, 4, 4), CONTIGUOUS), ((3, 24, 24, 24), CONTIGUOUS),
        ],
        ids=str,
    )  # fmt: skip
    def test_norm_alone(self, backend, shape, layout):
        """Its output, its gradients, running statistics, and statistics that are constants."""
        for constant in (False, True):
            x, grad = map_of(shape, layout=layout), torch.randn(shape)
            weight, bias = torch.randn(shape[1]), torch.randn(shape[1])
            found = []
            for device, by in (("cpu", "cpu"), (TARGETS[1].device, backend)):
                given = [t.detach().clone().to(device).requires_grad_() for t in (x, weight, bias)]
                mean, var = torch.zeros(shape[1], device=device), torch.ones(shape[1], device=device)
                table = norm_statistics(*(t.detach() for t in given), mean, var, 1, [0.1], 1e-5, by)
                y = Pending.after(given[0], table, *given[1:], constant=constant, backend=by).dense()
                y.backward(grad.to(device))
                found.append([y.detach(), mean, var, table, *(t.grad for t in given)])
            for ours, theirs in zip(*found, strict=True):
                torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-4, atol=1e-5)


class TestGradientsOnTheirWay:
    def test_a_gradient_that_two_have_is_not_written_over(self):
        """Where a map is added, batch norm and the map get the same gradient."""
        x, added = map_of((2, 8, 4, 4)).requires_grad_(), map_of((2, 8, 4, 4)).requires_grad_()
        m = torch.zeros(2, 8, 4, 4).contiguous(memory_format=LAST)
        options = Options.checked(0.3, 1.0, "soft", 0.0, 1.0, True, SURROGATE, "auto")
        spikes, *_ = fire(pending_of(x).plus(added), m, None, options, online=True, in_place=True, dense=True)
        grad = torch.randn(spikes.shape)
        spikes.backward(grad)
        slope = (1 - (m - 1).abs()).clamp(min=0)
        assert torch.equal(added.grad, grad.contiguous(memory_format=LAST) * slope)

    def test_sums_are_of_one_table(self):
        """A shortcut's batch norm gets the same gradient, and has sums of its own."""
        x, other = map_of((2, 8, 4, 4)).requires_grad_(), map_of((2, 8, 4, 4), mean=5.0).requires_grad_()
        m = torch.zeros(2, 8, 4, 4).contiguous(memory_format=LAST)
        options = Options.checked(0.3, 1.0, "soft", 0.0, 1.0, True, SURROGATE, "auto")
        total = pending_of(x).plus(pending_of(other).dense())
        spikes, *_ = fire(total, m, None, options, online=True, in_place=True, dense=True)
        grad = torch.randn(spikes.shape)
        spikes.backward(grad)
        exact = other.detach().double().requires_grad_()
        reference.normalised(exact).backward(grad.double() * (1 - (m.double() - 1).abs()).clamp(min=0))
        torch.testing.assert_close(other.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)

    def test_sums_are_not_found_after_a_change(self):
        x = map_of((2, 8, 4, 4)).requires_grad_()
        m = torch.zeros(2, 8, 4, 4).contiguous(memory_format=LAST)
        options = Options.checked(0.3, 1.0, "soft", 0.0, 1.0, True, SURROGATE, "auto")
        pending, found = pending_of(x), []
        spikes, *_ = fire(pending, m, None, options, online=True, in_place=True, dense=True)
        pending.way.register_hook(lambda g: found.append(sums_of(g, pending.table)) or g.mul_(2))
        pending.way.register_hook(lambda g: found.append(sums_of(g, pending.table)))
        grad = torch.randn(spikes.shape)
        spikes.backward(grad)
        assert found[0] is not None
        assert found[1] is None
        exact = x.detach().double().requires_grad_()
        reference.normalised(exact).backward(2 * grad.double() * (1 - (m.double() - 1).abs()).clamp(min=0))
        torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)

    def test_sums_are_not_found_for_a_later_table(self):
        """It may be where the other one was in memory."""
        grad, tables, addresses = map_of((2, 8, 4, 4)), [torch.empty(1, 4, 8)], set()
        attach(grad, torch.empty(1, 2, 8, dtype=torch.float64), tables[0])
        assert sums_of(grad, tables[0]) is not None
        first = tables.pop().untyped_storage()._cdata
        for _ in range(100):
            table = torch.empty(1, 4, 8)
            addresses.add(table.untyped_storage()._cdata)
            assert sums_of(grad, table) is None
        assert first in addresses

    def test_a_state_that_has_advanced(self):
        m = torch.zeros(2, 8, 4, 4).contiguous(memory_format=LAST)
        options = Options.checked(0.3, 1.0, "soft", 0.0, 1.0, True, SURROGATE, "auto")
        choice = {"online": True, "in_place": True, "dense": True}
        spikes, *_ = fire(pending_of(map_of(m.shape).requires_grad_()), m, None, options, **choice)
        fire(pending_of(map_of(m.shape)), m, None, options, **choice)
        with pytest.raises(RuntimeError, match="was advanced or changed before that step's backward"):
            spikes.sum().backward()


def test_operators():
    """Schemas, fake tensors, and the strides that the fake ones promise."""
    x, grad = map_of((4, 8, 3, 3)), map_of((4, 8, 3, 3))
    mean, var = torch.zeros(8), torch.ones(8)
    ops = torch.ops.stdl_engine
    table = norm_statistics(x, None, None, None, None, 2, [], 1e-5, "auto")
    opcheck(ops.norm_statistics.default, (x, None, None, mean, var, 2, [0.1, 0.1], 1e-5, "auto"))
    opcheck(ops.norm_map.default, (x, table, "auto"))
    opcheck(ops.norm_sums.default, (grad, x, table, "auto"))
    sums = ops.norm_sums(grad, x, table, "auto")
    opcheck(ops.norm_gradients.default, (grad, x, table, sums, False, "auto"))
    opcheck(ops.norm_gradients_.default, (grad.clone(memory_format=LAST), x, table, sums, True, "auto"))
    m = torch.zeros(2, 8, 3, 3).contiguous(memory_format=LAST)
    options = Options.checked(0.3, 1.0, "soft", 0.0, 1.0, True, SURROGATE, "auto")
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = ops.norm_map(torch.empty_like(x), torch.empty_like(table), "auto")
        given = Pending(torch.empty_like(x), torch.empty_like(table), torch.empty(()).expand(x.shape))
        spikes, bits, last = fire(given, torch.empty_like(m), None, options, online=False, in_place=False, dense=True)
    real = fire(
        Pending(x, table, torch.zeros(()).expand(x.shape)), m, None, options, online=False, in_place=False, dense=True
    )
    for one, other in zip((fake, spikes, bits, last), (pending_of(x).dense(), *real), strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


@pytest.mark.parametrize(
    ("x", "is_taken"),
    [
        (map_of((2, 8, 3, 3)), True), (map_of((2, 2048, 1, 2)), True), (torch.randn(2, 8, 3, 3), True),
        (torch.randn(2, 4, 3, 2), True), (torch.randn(2, 4, 3, 3), False), (torch.randn(1, 4096, 3, 3), False),
        (map_of((2, 24, 3, 3)), True), (map_of((2, 12, 3, 3)), False), (map_of((2, 4096, 3, 3)), False),
        (map_of((2, 8, 3, 3), torch.float64), False), (map_of((0, 8, 3, 3)), False), (torch.randn(2, 8), False),
        (map_of((2, 8, 1, 1)), False), (map_of((4, 8, 3, 3))[::2], False),
        (torch.randn(2, 8, 3, 4).transpose(2, 3), False),
        (torch.randn(3, 3, 2, 8).permute(2, 3, 0, 1), False), (torch.randn(3, 3, 1, 8).permute(2, 3, 0, 1), True),
    ],
    ids=["smallest", "largest", "contiguous", "few contiguous", "no bytes of samples", "too many contiguous",
         "no power of two", "no bytes of pixels", "too many", "float64", "empty", "vectors", "one pixel", "gaps",
         "turned", "samples inside", "one sample inside"],
)  # fmt: skip
def test_what_it_takes(x, is_taken):
    assert takes(x) is is_taken


def test_table():
    x = map_of((4, 8, 3, 3))
    table = norm_statistics(x, None, None, None, None, 1, [], 1e-5, "auto")
    exact = x.double()
    torch.testing.assert_close(table[0, MEAN].double(), exact.mean((0, 2, 3)), rtol=1e-6, atol=1e-6)
    inverse = (exact.var((0, 2, 3), correction=0) + 1e-5).rsqrt()
    torch.testing.assert_close(table[0, INVERSE].double(), inverse, rtol=1e-6, atol=0)
