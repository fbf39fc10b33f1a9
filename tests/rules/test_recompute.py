"""Running pieces again changes no number: weights, auxiliary networks, statistics and losses to the last bit."""

import functools
import itertools

import pytest
import torch
from torch import nn

from stdl_engine import FusedALIF, FusedLIF, FusedPLIF
from stdl_engine.memory import norms
from stdl_engine.memory.layers import computing_again
from stdl_engine.memory.pieces import Piece
from stdl_engine.memory.spikes import saving
from stdl_engine.models import MODELS
from stdl_engine.planning.plan import Recompute
from stdl_engine.planning.planner import measure
from stdl_engine.rules import BPTT, RULES, SLTT
from stdl_engine.units import ConvUnit, Head, ResidualBlock, SEWBlock, Unit

from .nets import adamw, assert_same, assert_same_results, batches, make, numbers, sgd, small, train, unchanged

T = 3


def trained(rule, data, model=None, optimizer=sgd, recompute="none", segment=None, **options):
    """Two batches, and all that training changes."""
    sample = data[0][0] if data[0][0].ndim == 4 else data[0][0][0]
    made = make(rule, model() if model else small(), sample, optimizer, recompute=recompute, **options)
    if segment:
        made.plan = made.plan.recomputing(segment=segment)
    before = numbers(made)
    results = train(made, data, T)
    return before, numbers(made), results


def assert_recomputing_changes_nothing(rule, data, model=None, optimizer=sgd, ways=("all",), **options):
    before, plain, results = trained(rule, data, model, optimizer, **options)
    for way, segment in itertools.product(ways, (None, 2) if rule == "bptt" else (None,)):
        _, again, other_results = trained(rule, data, model, optimizer, recompute=way, segment=segment, **options)
        assert_same(plain, again)
        assert_same_results(results, other_results)
    frozen = [key for key in before if rule == "decolle" and key.startswith("auxiliary.")]
    assert unchanged(before, plain) == frozen  # every weight and statistic took part


@pytest.mark.parametrize("rule", RULES)
def test_every_rule(rule):
    assert_recomputing_changes_nothing(rule, batches(2), ways=("all", "twice"))


@pytest.mark.parametrize("rule", ["bptt", "sltt"])
def test_a_batch_norm_in_both_halves_of_a_block(rule):
    def model():
        torch.manual_seed(1)
        block = ResidualBlock(8, 8)
        block.norm2 = block.norm1
        return nn.Sequential(ConvUnit(3, 8), block, Head(8, 10))

    (_, plain, _), (_, again, _) = (trained(rule, batches(1), model, recompute=way) for way in ("none", "all"))
    tracked = "model.1.norm1.num_batches_tracked"
    assert plain[tracked] == again[tracked] == 2 * T


@pytest.mark.parametrize(("recompute", "runs"), [("all", 2), ("twice", 3)])
def test_statistics_are_computed_once(recompute, runs, monkeypatch):
    data = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in batches(1)]
    model = functools.partial(small, width=0.25)
    asked, computed = [], []
    of_batch, pending = norms._of_batch, norms._pending
    monkeypatch.setattr(norms, "_of_batch", lambda *given: computed.append(1) or of_batch(*given))
    monkeypatch.setattr(norms, "_pending", lambda *given: asked.append(1) or pending(*given))
    to = {"memory_format": torch.channels_last}
    trained("bptt", data, lambda: model().to(**to), recompute=recompute)
    layers = sum(isinstance(layer, nn.BatchNorm2d) for layer in model().modules())
    assert T * layers / 2 < len(computed) <= T * layers  # the others have maps that are left to PyTorch
    assert len(asked) == runs * len(computed)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet18"])
@pytest.mark.parametrize("rule", ["bptt", "stdl"])
def test_every_model(rule, name):
    assert_recomputing_changes_nothing(rule, batches(1, name), functools.partial(small, name))


@pytest.mark.parametrize("rule", ["bptt", "stdl"])
@pytest.mark.parametrize("neuron", [FusedPLIF, FusedALIF])
def test_every_neuron(rule, neuron):
    assert_recomputing_changes_nothing(rule, batches(2), functools.partial(small, neuron=neuron), ways=("all", "twice"))


@pytest.mark.parametrize("rule", ["bptt", "sltt"])
def test_sequences(rule):
    assert_recomputing_changes_nothing(rule, batches(2, frames=T), ways=("all", "twice"))


@pytest.mark.parametrize("rule", ["bptt", "stdl"])
def test_convolutions_that_read_bits(rule):
    data = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in batches(1)]
    model = functools.partial(small, width=0.25)
    assert_recomputing_changes_nothing(rule, data, lambda: model().to(memory_format=torch.channels_last))


@pytest.mark.parametrize("rule", ["bptt", "stdl"])
def test_other_optimizers(rule):
    assert_recomputing_changes_nothing(rule, batches(2), optimizer=adamw)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_online_under_autocast(precision):
    assert_recomputing_changes_nothing("stdl", batches(2), precision=precision)


def test_through_time_under_autocast():
    """Without recomputation a weight's copy in low precision adds up the gradients of all time steps in low precision;
    here each time step has its own, so the two agree to the rounding of bfloat16."""
    _, plain, _ = trained("bptt", batches(1), precision="bf16")
    for way in ("all", "twice"):
        _, again, _ = trained("bptt", batches(1), precision="bf16", recompute=way)
        for key, value in plain.items():
            torch.testing.assert_close(again[key], value, rtol=2e-2, atol=2e-3)
    _, once, _ = trained("bptt", batches(1), precision="bf16", recompute="all")
    _, twice, _ = trained("bptt", batches(1), precision="bf16", recompute="twice")
    assert_same(once, twice)


class Own(Unit):
    """A unit that says nothing of pieces, with dropout, a buffer it changes itself, two neurons and a conv of
    PyTorch's own with a bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.in_channels = self.out_channels = channels
        self.first, self.second = nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 1)
        self.neurons = nn.ModuleList([FusedLIF(decay=0.5), FusedPLIF(decay=0.5)])
        self.dropout = nn.Dropout(0.3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.neurons[1](self.second(self.dropout(self.neurons[0](self.first(x)))))

    def rebuild(self, in_channels, stride):
        return Own(in_channels)


def own_network():
    torch.manual_seed(5)
    return nn.Sequential(ConvUnit(3, 8), Own(8), SEWBlock(8, 8), ResidualBlock(8, 8), Own(8), Head(8, 10))


@pytest.mark.parametrize("rule", ["bptt", "sltt", "ell"])
def test_a_unit_that_is_one_piece_and_draws_random_numbers(rule):
    data = batches(2)
    plain, states = {}, []
    for way in ("none", "all", "twice"):
        made = make(rule, own_network(), data[0][0], recompute=way)
        torch.manual_seed(9)
        train(made, data, T)
        states.append(torch.get_rng_state())
        found = numbers(made)
        plain = plain or found
        assert_same(plain, found)
        assert found["model.1.calls"] == 2 * T
    assert all(torch.equal(states[0], state) for state in states)


class Plain(Unit):
    """A unit of PyTorch's own convolutions and batch norms, which says nothing of pieces."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.in_channels = self.out_channels = channels
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), FusedLIF(decay=0.5)),
            *(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels), FusedLIF(decay=0.5)),
        )

    def forward(self, x):
        return self.layers(x)


def plain_network():
    torch.manual_seed(5)
    return nn.Sequential(ConvUnit(3, 8), Plain(8), Plain(8), Head(8, 10))


@pytest.mark.parametrize("chunk", [1, T])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
class TestConvolutionsThatAreNotOurs:
    @pytest.mark.parametrize("rule", ["sltt", "ell"])
    def test_are_computed_again_with_the_same_result(self, rule, precision, chunk):
        assert_recomputing_changes_nothing(rule, batches(2), plain_network, precision=precision, chunk=chunk)

    def test_keep_no_output(self, precision, chunk):
        (x, y), *_ = batches(1)
        kept, again = (
            measure(make("sltt", plain_network(), x, recompute=way, precision=precision, chunk=chunk), x, y, T)
            for way in ("none", "all")
        )
        assert again.peak_bytes < kept.peak_bytes
        output = {"fp32": 4, "bf16": 2}[precision]  # bytes of a number; a membrane has 4, spikes are bits
        assert again.parts["saved"] < 1.1 * kept.parts["saved"] * 4 / (4 + output)


def test_a_convolution_computed_again_reads_the_weights_of_forward():
    """A weight that was changed in place between forward and backward would give another output."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
    with computing_again(layers.modules()), saving("lean"):
        y = layers(torch.randn(2, 8, 9, 9))
        with torch.no_grad():
            layers[0].weight.add_(1)
        with pytest.raises(
            RuntimeError, match=r"^weights of shape \(8, 8, 3, 3\) were changed in place between forward"
        ):
            y.backward(torch.randn_like(y))
    assert type(layers[0]) is nn.Conv2d
    assert "computes_again" not in vars(layers[0])


def test_some_pieces_and_not_others():
    data = batches(1)
    for rule in ("bptt", "sltt"):
        plain = make(rule, small(), data[0][0])
        train(plain, data, T)
        names = [stage.name for stage in plain.flow(plain.subnetworks[0]).stages]
        for chosen in (names[:1], names[3:9:2], names[-4:]):
            levels = {(0, name): 1 + place % 2 for place, name in enumerate(chosen)}
            made = make(rule, small(), data[0][0])
            made.plan = made.plan.recomputing(levels)
            train(made, data, T)
            assert_same(numbers(plain), numbers(made))


class TestHooks:
    def trained(self, recompute, hook, where, rule="sltt"):
        data = batches(1)
        rule = make(rule, small(), data[0][0], recompute=recompute)
        (module,) = [m for name, m in rule.model.named_modules() if name == where]
        seen = []
        module.register_forward_hook(functools.partial(hook, seen))
        train(rule, data, T)
        return numbers(rule), seen

    @pytest.mark.parametrize("where", ["2", "2.norm1", "2.conv2", "2.neuron2", "0.conv"])
    @pytest.mark.parametrize("rule", ["bptt", "sltt"])
    def test_one_that_looks_is_called_once(self, rule, where):
        def look(seen, module, args, output):
            seen.append((args[0].clone(), output.clone()))

        plain, seen = self.trained("none", look, where, rule)
        again, seen_again = self.trained("all", look, where, rule)
        assert_same(plain, again)
        assert len(seen) == len(seen_again) == T
        assert all(
            torch.equal(a, b)
            for one, other in zip(seen, seen_again, strict=True)
            for a, b in zip(one, other, strict=True)
        )

    @pytest.mark.parametrize("where", ["2.norm1", "2.conv2", "0.conv"])
    @pytest.mark.parametrize(("rule", "runs"), [("bptt", 2), ("sltt", 1)])
    def test_one_that_changes_the_output_does_so_whenever_the_layer_runs(self, rule, runs, where):
        """Through time a piece runs again as a whole; online only convolutions are computed again, and no hook runs."""

        def change(seen, module, args, output):
            seen.append(output)
            return output * 0.5

        plain, seen = self.trained("none", change, where, rule)
        again, seen_again = self.trained("all", change, where, rule)
        assert_same(plain, again)
        assert (len(seen), len(seen_again)) == (T, runs * T)


@pytest.mark.parametrize("rule", ["bptt", "stdl"])
def test_frozen_weights(rule):
    def frozen():
        model = small()
        for parameter in model[:3].parameters():
            parameter.requires_grad_(False)
        return model

    data = batches(1)
    plan = {} if rule == "bptt" else {"budget": 1.0}
    _, plain, _ = trained(rule, data, frozen, **plan)
    for way in ("all", "twice"):
        _, again, _ = trained(rule, data, frozen, recompute=way, **plan)
        assert_same(plain, again)


@pytest.mark.parametrize("rule", ["bptt", "sltt"])
def test_a_neuron_that_learns_from_an_input_that_does_not(rule):
    def frozen():
        model = small(neuron=FusedPLIF)
        for layer in (model[0].conv, model[0].norm):
            layer.requires_grad_(False)
        return model

    data = batches(1)
    before, plain, _ = trained(rule, data, frozen)
    assert not torch.equal(before["model.0.neuron.w"], plain["model.0.neuron.w"])
    for way in ("all", "twice"):
        _, again, _ = trained(rule, data, frozen, recompute=way)
        assert_same(plain, again)


class CallsTwice(ConvUnit):
    """A unit that calls its neuron twice in a time step, the second time with the spikes of the first call, or with
    those as a constant, so that only the state's gradient reaches the first call."""

    def __init__(self, constant):
        super().__init__(8, 8, functools.partial(FusedLIF, decay=0.5))
        self.neuron.overwrite = False  # its input is read twice
        self.constant = constant

    def forward(self, x):
        current = self.norm(self.conv(x))
        first = self.neuron(current)
        return self.neuron(0.5 * current + 0.5 * (first.detach() if self.constant else first))


@pytest.mark.parametrize("constant", [False, True])
def test_a_neuron_that_is_called_twice_in_a_time_step(constant):
    def network():
        torch.manual_seed(5)
        return nn.Sequential(ConvUnit(3, 8), CallsTwice(constant), Head(8, 10))

    assert_recomputing_changes_nothing("bptt", batches(1), network, ways=("all", "twice"))


def test_a_piece_that_calls_the_neuron_it_ends_in_twice():
    class Ends(CallsTwice):
        def pieces(self):
            return (Piece(self.forward, tuple(self.children()), ends_in=self.neuron),)

        def forward(self, x):
            return super().forward(x)

    data = batches(1)
    made = make("bptt", nn.Sequential(ConvUnit(3, 8), Ends(False), Head(8, 10)), data[0][0], recompute="twice")
    with pytest.raises(
        ValueError, match=r"^a piece that ends in its FusedLIF calls it twice in a time step, and the f"
    ):
        train(made, data, T)


@pytest.mark.parametrize(("rule", "recompute"), [("bptt", "all"), ("bptt", "twice"), ("stdl", "all")])
def test_nothing_is_held_after_a_step(rule, recompute):
    """Rings of references would keep the states of one subnetwork alive while the next one runs."""
    import gc
    import weakref

    data = batches(1)
    made = make(rule, small(), data[0][0], recompute=recompute)
    states = []
    neuron = made.model[1].neuron1
    keep = type(neuron).reset
    gc.disable()
    try:
        neuron.reset = lambda: (states.extend(weakref.ref(s) for s in neuron.states()), keep(neuron))
        train(made, data, T)
        assert states
        assert not any(state() is not None for state in states)
    finally:
        gc.enable()


class TestRefusals:
    def test_unknown(self):
        with pytest.raises(ValueError, match=r"^unknown recompute 'some': pass one of none, auto, all, twice\.$"):
            make("sltt", small(), batches(1)[0][0], recompute="some")

    def test_the_plain_form(self):
        with pytest.raises(ValueError, match=r'^memory "paper" is the plain form, which recomputes nothing: pass mem'):
            make("sltt", small(), batches(1)[0][0], recompute="all", memory="paper")


def test_levels_of_a_unit_that_runs_as_a_whole():
    recompute = Recompute({(0, "1:64R.1"): 1, (0, "1:64R.2"): 2, (1, "1:64R.1"): 1})
    assert [recompute.level(0, name) for name in ("1:64R", "1:64R.1", "2:64R")] == [2, 1, 0]
    assert Recompute(default=1).level(3, "0:64C3") == 1


def test_a_plan_for_another_network_is_refused():
    x = batches(1)[0][0]
    plan = SLTT(small(), sgd, x).plan.recomputing({(0, "0:99C3"): 1})
    with pytest.raises(ValueError, match=r"^the plan runs 1/0:99C3 again, a piece that this network does not have: pl"):
        SLTT(small(), sgd, x, plan=plan)
    assert SLTT(small(), sgd, x, plan=plan.recomputing({})).plan.recompute == Recompute()


def test_rules_say_what_they_recompute():
    x = batches(1)[0][0]
    assert "every piece runs again" in repr(SLTT(small(), sgd, x, recompute="all"))
    assert "twice" in repr(BPTT(small(), sgd, x, recompute="twice"))
    assert "again" not in repr(BPTT(small(), sgd, x))
