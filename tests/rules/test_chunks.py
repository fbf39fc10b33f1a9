"""Time steps that run together: the same spikes and statistics to the last bit, and the same gradients to rounding."""

import functools

import pytest
import torch
from torch import nn

from stdl_engine import FusedALIF, FusedLIF, FusedPLIF
from stdl_engine.memory.norms import lean_norms
from stdl_engine.planning.budgets import OverBudget
from stdl_engine.planning.planner import measure, predict
from stdl_engine.rules import BPTT, RULES, SLTT, STDL
from stdl_engine.units import ConvUnit, Head, ResidualBlock, SEWBlock

from .nets import Recorder, assert_same, batch, gradients, make, numbers, sgd, small, train

T = 5
SIZES = (2, 3, 5)
"""Of chunks: with one step left, with two, and all at once."""


def network(neuron=FusedLIF, dtype=torch.float64) -> nn.Sequential:
    torch.manual_seed(1)
    make_neuron = functools.partial(neuron, decay=0.5)
    pool = nn.AvgPool2d(2)
    units = ConvUnit(3, 8, make_neuron), ResidualBlock(8, 8, make_neuron), SEWBlock(8, 12, make_neuron, stride=2)
    last = ConvUnit(12, 9, make_neuron, pool=pool)
    return nn.Sequential(*units, last, Head(9, 10)).to(dtype, memory_format=torch.channels_last)


def data(frames: int, dtype=torch.float64, count: int = 3):
    x, y = batch(count=count, frames=frames)
    x = x.to(dtype)
    return (x if frames else x.contiguous(memory_format=torch.channels_last)), y


def learned(rule: str, chunk: int, model: nn.Sequential, frames: int, **options):
    """Gradients, statistics, losses and logits of a step."""
    x, y = data(frames, next(model.parameters()).dtype)
    options |= {"budget": 1.0} if rule == "stdl" else {}
    made = make(rule, model, x[0] if frames else x, Recorder, chunk=chunk, **options)
    found = gradients(made, x, y, T)
    statistics = {key: value for key, value in numbers(made).items() if "running" in key or "tracked" in key}
    result = train(made, [(x, y)], T)[0]
    return found, statistics, result


def assert_alike(one, other, tolerance=1e-12):
    (gradients, statistics, result), (others, other_statistics, other_result) = one, other
    assert_same(statistics, other_statistics)
    assert torch.equal(result.logits, other_result.logits)
    assert gradients.keys() == others.keys()
    for key, gradient in gradients.items():
        assert gradient.abs().max() > 0 or "bias" in key or "w" in key, key
        error = (gradient - others[key]).abs().max() / gradient.abs().max().clamp(min=1e-3)
        assert error < tolerance, (key, error)
    for loss, other_loss in zip(result.losses, other_result.losses, strict=True):
        assert abs(float(loss - other_loss)) < tolerance


@pytest.mark.parametrize("frames", [0, T], ids=["image", "sequence"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule(rule, frames):
    alone = learned(rule, 1, network(), frames)
    for size in SIZES:
        assert_alike(alone, learned(rule, size, network(), frames))


@pytest.mark.parametrize("rule", ["sltt", "stdl", "bptt"])
@pytest.mark.parametrize("neuron", [FusedPLIF, FusedALIF])
def test_other_neurons(rule, neuron):
    assert_alike(learned(rule, 1, network(neuron), T), learned(rule, 3, network(neuron), T))


@pytest.mark.parametrize("rule", ["sltt", "stdl", "ell"])
@pytest.mark.parametrize("frames", [0, T], ids=["image", "sequence"])
def test_pieces_that_run_again(rule, frames):
    kept = learned(rule, 3, network(), frames)
    again = learned(rule, 3, network(), frames, recompute="all")
    assert_same(kept[0], again[0])
    assert_same(kept[1], again[1])


def test_orders_compute_the_same():
    one, other = (learned("ell", 2, network(), T, order=order) for order in ("subnetwork", "time"))
    assert_same(one[0], other[0])
    assert_same(one[1], other[1])


@pytest.mark.parametrize("settings", [{"momentum": None}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_batch_norm_of_every_kind(settings):
    def model():
        made = network()
        for unit in made[:-1]:
            for name, module in list(unit.named_modules()):
                if isinstance(module, nn.BatchNorm2d):
                    owner = unit.get_submodule(name.rpartition(".")[0])
                    setattr(owner, name.rpartition(".")[2], nn.BatchNorm2d(module.num_features, **settings))
        return made.to(torch.float64)

    assert_alike(learned("sltt", 1, model(), T), learned("sltt", 3, model(), T))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[:, ::2], lambda t: t[:, :, ::2, 1:], lambda t: t.transpose(2, 3), lambda t: t.permute(1, 0, 2, 3),
        lambda t: t[..., :1].expand(-1, -1, -1, 5), lambda t: t.flatten(2).transpose(1, 2),
    ],
    ids=["channels", "pixels", "transposed", "samples inside", "expanded", "tokens"],
)  # fmt: skip
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_batch_norm_of_a_view(view, layout):
    """Which is not dense, or in no usual order."""
    x = view(torch.randn(16, 16, 4, 6).contiguous(memory_format=layout)).requires_grad_()
    samples, grad = len(x) // 2, torch.randn(x.shape)
    kind = nn.BatchNorm2d if x.ndim == 4 else nn.BatchNorm1d
    layer, exact = kind(x.shape[1]), kind(x.shape[1]).double()
    with lean_norms([layer], samples):
        y = layer(x)
    expected = torch.cat([exact(part.double()) for part in x.split(samples)])
    wanted, found = torch.autograd.grad(expected, x, grad.double())[0], torch.autograd.grad(y, x, grad)[0]
    for one, other in ((y, expected), (found, wanted), (layer.running_var, exact.running_var)):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["vgg11", "sew_resnet34", "resnet19"])
def test_networks_of_the_paper_in_single_precision(name):
    x, y = batch(name)
    found = []
    for size in (1, 4):
        model = small(name).to(memory_format=torch.channels_last)
        rule = make("sltt", model, x, chunk=size)
        found.append((rule.step(x, y, 4), numbers(rule)))
    (result, one), (other_result, other) = found
    torch.testing.assert_close(result.logits, other_result.logits, rtol=1e-4, atol=1e-5)
    for key, value in one.items():
        torch.testing.assert_close(value, other[key], rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_learns_the_same_spikes(precision):
    found = []
    for size in (1, 4):
        rule = make("stdl", network(dtype=torch.float32), data(0, torch.float32)[0], sgd, budget=1.0,
                    precision=precision, chunk=size)  # fmt: skip
        found.append(train(rule, [data(0, torch.float32)], T=4)[0])
    torch.testing.assert_close(found[0].logits, found[1].logits, rtol=2e-2, atol=2e-2)


def test_a_still_image_is_convolved_once_per_chunk(monkeypatch):
    seen, convolution = [], torch.ops.aten.convolution

    def noted(x, *rest):
        if x.shape[1] == 3:
            seen.append(len(x))
        return convolution(x, *rest)

    monkeypatch.setattr(torch.ops.aten, "convolution", noted)
    x, y = data(0)
    make("sltt", network(), x, chunk=3).step(x, y, T)
    assert seen == [len(x), len(x)]  # chunks of 3 and 2 time steps


def test_layers_are_given_back(monkeypatch):
    x, y = data(0)
    model = network()
    rule = make("sltt", model, x, chunk=3)
    kinds = [type(m) for m in model.modules()]
    rule.step(x, y, T)
    assert [type(m) for m in model.modules()] == kinds
    monkeypatch.setattr(Head, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rule.step(x, y, T)
    assert [type(m) for m in model.modules()] == kinds
    assert all(m.samples is None for m in model.modules() if isinstance(m, FusedLIF))
    assert not any("samples" in vars(m) for m in model.modules() if isinstance(m, nn.BatchNorm2d))


WAYS = [(STDL, {"budget": 0.6}), (SLTT, {"recompute": "all"}), (BPTT, {})]
KINDS = [FusedLIF, FusedPLIF, FusedALIF]


@pytest.mark.parametrize("neuron", range(3), ids=[kind.__name__ for kind in KINDS])
@pytest.mark.parametrize("way", range(3), ids=[rule.__name__ for rule, _ in WAYS])
def test_the_peak_is_the_predicted_one(way, neuron):
    """Of an image and of a sequence, in turn: every rule and every neuron has both."""
    (rule, options), neuron, frames = WAYS[way], KINDS[neuron], T if (way + neuron) % 2 else 0
    x, y = data(frames, torch.float32, count=4)
    sample, model = (x[0] if frames else x), network(neuron, torch.float32)
    predicted = predict(rule, model, sgd, sample, T, sequence=bool(frames), chunk=2, **options)
    measured = measure(rule(model, sgd, sample, chunk=2, **options), x, y, T)
    assert predicted.peak_bytes == measured.peak_bytes
    assert predicted.parts == measured.parts
    assert predicted.chunk == 2


def test_as_many_together_as_a_quarter_more_memory_lets():
    x, _ = data(0, torch.float32, count=4)
    peaks = {
        size: predict(SLTT, network(dtype=torch.float32), sgd, x, 4, steps=4, chunk=size).peak_bytes
        for size in (1, 2, 4, "auto")
    }
    chosen = SLTT(network(dtype=torch.float32), sgd, x, steps=4, chunk="auto").plan.chunk
    assert chosen == max(size for size in (1, 2, 4) if peaks[size] <= 1.25 * peaks[1])
    assert peaks["auto"] == peaks[chosen]


@pytest.mark.parametrize("name", ["sltt", "stdl", "bptt"])
def test_as_many_together_as_a_budget_lets(name):
    x, y = data(0, torch.float32, count=4)
    model = network(dtype=torch.float32)
    need = {size: RULES[name](model, sgd, x, steps=4, chunk=size, **({"budget": 1.0} if name == "stdl" else {}))
            for size in (1, 2, 4)}  # fmt: skip
    peaks = {size: measure(rule, x, y, 4).peak_bytes for size, rule in need.items()}
    for budget in (peaks[1], peaks[2], 2 * peaks[4]):
        rule = RULES[name](model, sgd, x, steps=4, chunk="auto", budget=budget)
        assert measure(rule, x, y, 4).peak_bytes <= budget
        assert rule.plan.chunk >= max(size for size, peak in peaks.items() if peak <= budget)
        assert f"{rule.plan.chunk} time steps run together" in str(rule.plan) or rule.plan.chunk == 1


def test_a_chunk_that_breaks_the_budget_is_refused():
    x, y = data(0, torch.float32, count=4)
    model = network(dtype=torch.float32)
    alone = measure(SLTT(model, sgd, x, steps=4), x, y, 4).peak_bytes
    with pytest.raises(OverBudget, match=r'with 4 time steps together .*: pass chunk="auto"'):
        SLTT(model, sgd, x, steps=4, chunk=4, recompute="none", budget=alone)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"chunk": 0}, 'chunk is 0: pass a number of time steps from 1 up, or "auto"'),
        ({"chunk": "all"}, "chunk is 'all': pass a number"),
        ({"chunk": 2, "memory": "paper"}, "one time step after another"),
        ({"chunk": 2, "recompute": "all"}, "pieces that run again through time take one time step after another"),
    ],
)
def test_what_cannot_be(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        BPTT(network(), sgd, data(0)[0], **options)
