"""A still image goes through the first convolution once: the same numbers to the last bit, and never a byte more."""

import functools

import pytest
import torch
from torch import nn

from stdl_engine import FusedALIF, FusedLIF, FusedPLIF
from stdl_engine.memory.layers import SpikeConv2d
from stdl_engine.memory.still import showing
from stdl_engine.planning.planner import measure, predict
from stdl_engine.rules import RULES, base, inference
from stdl_engine.units import ConvUnit, Head, ResidualBlock

from .nets import Recorder, assert_same, batch, gradients, make, sgd

T = 4


@pytest.fixture
def convolved(monkeypatch):
    """The inputs with three channels that were convolved, the network's own."""
    found, convolution = [], torch.ops.aten.convolution

    def noted(x, *rest):
        if x.shape[1] == 3:
            found.append(x)
        return convolution(x, *rest)

    monkeypatch.setattr(torch.ops.aten, "convolution", noted)
    return found


@pytest.fixture
def switch_off(monkeypatch):
    def off():
        for place in (base, inference):
            monkeypatch.setattr(place, "first_convolution", lambda _: None)

    return off


def network(neuron=FusedLIF) -> nn.Sequential:
    torch.manual_seed(1)
    make_neuron = functools.partial(neuron, decay=0.5)
    units = ConvUnit(3, 8, make_neuron), ResidualBlock(8, 8, make_neuron), ConvUnit(8, 16, make_neuron)
    return nn.Sequential(*units, Head(16, 10))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule(rule, layout, convolved, switch_off):
    x, y = batch()
    x = x.contiguous(memory_format=layout)

    def run():
        convolved.clear()
        options = {"budget": 1.0} if rule == "stdl" else {}
        made = make(rule, network().to(memory_format=layout), x, Recorder, **options)
        return gradients(made, x, y, T) | dict(made.model.named_buffers()), len(convolved)

    shared, once = run()
    switch_off()
    plain, often = run()
    assert_same(shared, plain)
    assert (once, often) == (1, T)
    assert all(shared[f"model.0.{name}"].any() for name in ("conv.weight", "norm.weight", "norm.bias"))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize(("recompute", "runs"), [("all", 2), ("twice", 3)])
def test_pieces_that_run_again_through_time(recompute, runs, layout, convolved, switch_off):
    x, y = batch()
    x = x.contiguous(memory_format=layout)

    def run():
        convolved.clear()
        made = make("bptt", network().to(memory_format=layout), x, Recorder, recompute=recompute, steps=T)
        segments = -(-T // made.plan.recompute.segment)
        return gradients(made, x, y, T) | dict(made.model.named_buffers()), len(convolved), segments

    shared, once, segments = run()
    switch_off()
    plain, often, _ = run()
    assert_same(shared, plain)
    assert (once, often) == (1 + (runs - 1) * segments, runs * T)


@pytest.mark.parametrize("rule", ["bptt", "sltt"])
@pytest.mark.parametrize("neuron", [FusedPLIF, FusedALIF])
def test_every_neuron(neuron, rule, convolved, switch_off):
    x, y = batch()
    run = lambda: gradients(make(rule, network(neuron), x, Recorder), x, y, T)  # noqa: E731
    shared = run()
    assert len(convolved) == 1
    switch_off()
    assert_same(shared, run())


def test_under_autocast(convolved, switch_off):
    x, y = batch()
    run = lambda: gradients(make("sltt", network(), x, Recorder, precision="bf16"), x, y, T)  # noqa: E731
    shared = run()
    assert len(convolved) == 1
    switch_off()
    assert_same(shared, run())


def test_the_next_batch_is_another_image(convolved):
    (x, y), (other, _) = batch(seed=3), batch(seed=4)
    rule = make("sltt", network(), x)
    rule.step(x, y, T)
    rule.step(other, y, T)
    assert [seen is x for seen in convolved] == [True, False]
    assert rule.model[0].conv.still is None


class TestWhereItRunsEveryTime:
    @pytest.mark.parametrize(
        ("rule", "options"),
        [("sltt", {"recompute": "all"}), ("ell", {"order": "time"})],
    )
    def test_what_would_take_more_memory(self, rule, options, convolved):
        x, y = batch()
        make(rule, network(), x, **options).step(x, y, T)
        assert len(convolved) == (2 * T if "recompute" in options else T)

    def test_later_stages_that_run_again(self, convolved):
        x, y = batch()
        made = make("sltt", network(), x)
        names = [stage.name for stage in made.flow(made.subnetworks[0]).stages]
        made.plan = made.plan.recomputing({(0, names[-1]): 1})
        made.step(x, y, T)
        assert len(convolved) == T

    @pytest.mark.parametrize("part", ["conv", "norm", "neuron"])
    def test_layers_with_hooks(self, part, convolved):
        x, y = batch()
        model, seen = network(), []
        getattr(model[0], part).register_forward_hook(lambda *_: seen.append(1))
        make("sltt", model, x).step(x, y, T)
        assert len(convolved) == len(seen) == T

    def test_frames(self, convolved):
        x, y = batch()
        make("sltt", network(), x).step(torch.stack([x] * T), y, T)
        assert len(convolved) == T

    def test_another_input_than_the_image(self):
        conv, image = SpikeConv2d(3, 8, 3, bias=False), torch.randn(2, 3, 8, 8)
        conv.memory_form = "lean"
        with showing(image, conv):
            assert conv(image).data_ptr() == conv(image).data_ptr() == conv.still.output.data_ptr()
            assert not torch.equal(conv(image + 1), conv(image))


@pytest.mark.parametrize("order", ["subnetwork", "time"])
@pytest.mark.parametrize("rule", ["bptt", "sltt", "ell", "even"])
def test_the_peak_never_rises(rule, order, switch_off):
    options = {"order": order} | ({"K": 2} if rule == "even" else {})

    def peaks():
        steps = [predict(RULES[rule], network(), sgd, (4, 3, 16, 16), steps, **options) for steps in (2, 4)]
        return [step.peak_bytes for step in steps]

    shared = peaks()
    switch_off()
    plain = peaks()
    assert all(mine <= other for mine, other in zip(shared, plain, strict=True))
    if rule == "bptt":
        assert shared[1] < plain[1]  # one map of the convolution instead of one per time step


@pytest.mark.parametrize("recompute", ["all", "twice"])
def test_the_peak_never_rises_where_pieces_run_again(recompute, switch_off):
    def peaks():
        options = {"recompute": recompute}
        return [
            predict(RULES["bptt"], network(), sgd, (4, 3, 16, 16), T, steps=T, **options).peak_bytes for T in (2, 4)
        ]

    shared = peaks()
    switch_off()
    assert all(mine <= other for mine, other in zip(shared, peaks(), strict=True))


def test_real_tensors_take_what_was_predicted():
    shape = (4, 3, 16, 16)
    for rule, options in (("bptt", {}), ("bptt", {"recompute": "all"}), ("sltt", {}), ("ell", {})):
        predicted = predict(RULES[rule], network(), sgd, shape, T, **options)
        measured = measure(make(rule, network(), torch.randn(shape), **options), torch.randn(shape), torch.arange(4), T)
        assert predicted.peak_bytes == measured.peak_bytes


def test_a_step_that_fails_leaves_the_convolution_as_it_was():
    x, y = batch()
    rule = make("sltt", network(), x)
    rule.finish = lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        rule.step(x, y, T)
    assert rule.model[0].conv.still is None


def test_predictions(convolved, switch_off):
    x, _ = batch()
    rule = make("sltt", network(), x)
    shared = rule.predict(x, T)
    assert len(convolved) == 1
    with torch.inference_mode():
        assert torch.equal(rule.predict(x, T), shared)
    switch_off()
    assert torch.equal(rule.predict(x, T), shared)
