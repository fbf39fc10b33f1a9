"""Prediction: the plain network, as it is, and left as it was."""

import functools

import pytest
import torch

from stdl_engine import FusedLIF, reset_states
from stdl_engine.kernels.norm_lif import table_of
from stdl_engine.memory import norms
from stdl_engine.neurons.lif import LeakyNeuron
from stdl_engine.rules import RULES
from stdl_engine.rules.batch import split_frames
from stdl_engine.rules.inference import mean_logits
from stdl_engine.units import ConvUnit, Head

from .nets import assert_same, batch, batches, make, numbers, small, train

rules = pytest.mark.parametrize("name", RULES)
T = 3


def lively(model: torch.nn.Sequential) -> torch.nn.Sequential:
    """With running statistics that make all units fire."""
    torch.manual_seed(5)
    for norm in (module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)):
        norm.running_mean.uniform_(-0.5, 0.1)
        norm.running_var.uniform_(0.2, 0.6)
    return model


@pytest.mark.usefixtures("norms_by_pytorch")
@rules
@pytest.mark.parametrize(("memory", "frames"), [("lean", 0), ("paper", T)], ids=["lean-static", "paper-sequence"])
def test_logits_are_the_plain_networks(name, memory, frames):
    """Auxiliary networks, the rule and its memory make no difference to a model with these weights."""
    data = batches(1)
    rule = make(name, small(), data[0][0], memory=memory)
    train(rule, data)
    x, _ = batch(frames=frames, seed=9)
    plain = small(seed=77)
    plain.load_state_dict(rule.model.state_dict())
    plain.eval()
    with torch.no_grad():
        expected = sum(plain(frame) for frame in (x if frames else [x] * T)) / T
    found = rule.predict(x, T)
    assert torch.equal(found, expected)
    assert found.any()
    assert not found.requires_grad


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize("name", ["resnet18", "vgg16", "sew_resnet34"])
def test_batch_norm_is_in_one_pass_with_the_neuron_after_it(name, layout, monkeypatch):
    """With the running statistics, of which each layer makes one table. The logits are those of the same two kernels
    one after the other, to the last bit."""
    tables, fired, one_pass = [], [], LeakyNeuron.fire
    monkeypatch.setattr(LeakyNeuron, "fire", lambda *given, **how: fired.append(0) or one_pass(*given, **how))
    monkeypatch.setattr(norms, "table_of", lambda *given: tables.append(0) or table_of(*given))
    x = torch.randn(6, 3, 32, 32).to(memory_format=layout)
    model = lively(small(name, width=0.125)).to(memory_format=layout)
    rates = torch.zeros(len(model) - 1)
    found = mean_logits(model, [x] * T, rates)
    assert rates.min() > 0.01
    assert len(fired) == T * sum(isinstance(module, FusedLIF) for module in model.modules())
    assert len(tables) == sum(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules())
    assert torch.equal(make("sltt", model, x).predict(x, T), found)
    monkeypatch.setattr(LeakyNeuron, "takes", lambda *_: False)
    assert torch.equal(mean_logits(model, [x] * T), found)


@pytest.mark.parametrize("frames", [0, 5])
@pytest.mark.parametrize("chunk", [2, 4, 5])
def test_time_steps_together_change_nothing(chunk, frames):
    """As many as in training; a shorter last part, too. Firing rates are the same, too."""
    x, _ = batch(frames=frames, count=6)
    sample = x[0] if frames else x
    one_by_one, together = (make("sltt", lively(small()), sample, chunk=size) for size in (1, chunk))
    expected = one_by_one.predict(x, 5)
    assert expected.any()
    torch.testing.assert_close(together.predict(x, 5), expected, rtol=1e-6, atol=1e-6)
    assert all(module.membrane is None for module in together.modules() if isinstance(module, FusedLIF))
    found = []
    for size in (1, chunk):
        rates = torch.zeros(len(together.model) - 1)
        logits = mean_logits(together.model, split_frames(x, 5, together.network.in_shape), rates, chunk=size)
        torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
        found.append(rates)
    assert found[0].min() > 0
    torch.testing.assert_close(*found)


class OwnWay(torch.nn.BatchNorm2d):
    """Uses the batch in evaluation, too, and has attributes of names that the engine might use."""

    samples, fitting, constant = 3, "yes", 0.25

    def forward(self, x):
        assert (self.samples, self.fitting, self.constant) == (3, "yes", 0.25)
        return torch.nn.functional.batch_norm(x, None, None, self.weight, self.bias, True) + self.constant


@pytest.mark.parametrize(
    "make_norm", [lambda: torch.nn.BatchNorm2d(8, track_running_stats=False), lambda: OwnWay(8)], ids=["plain", "own"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_statistics_of_the_batch_are_those_of_a_time_step(make_norm, dtype):
    """Where there are no running statistics, or a layer does not use them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(ConvUnit(3, 8, functools.partial(FusedLIF, threshold=0.5)), Head(8, 10))
    model[0].norm = make_norm()
    x = (torch.randn(5, 4, 3, 5, 5) * torch.arange(1.0, 6).view(5, 1, 1, 1, 1)).to(dtype)
    model.to(dtype).eval()
    with torch.no_grad():
        expected = sum(model(frame) for frame in x) / 5
    reset_states(model)
    for chunk in (1, 2, 5):
        torch.testing.assert_close(make("sltt", model, x[0], chunk=chunk).predict(x, 5), expected)
    assert vars(model[0].norm).keys().isdisjoint({"samples", "fitting", "constant"})


def test_a_model_that_is_more_than_its_units():
    """Hooks on it see every time step, and a forward of its own counts."""

    class Doubled(torch.nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    x, _ = batch()
    model, seen = lively(small()), []
    expected = mean_logits(model, [x] * T)
    torch.testing.assert_close(mean_logits(Doubled(*model), [x] * T), 2 * expected)
    model.register_forward_hook(lambda _model, _inputs, logits: seen.append(logits))
    assert torch.equal(mean_logits(model, [x] * T), expected)
    assert len(seen) == T


@pytest.mark.parametrize("chunk", [1, T])
def test_no_samples(chunk):
    x, _ = batch()
    assert make("sltt", small(), x, chunk=chunk).predict(x[:0], T).shape == (0, 10)


def test_auxiliary_networks_are_not_run():
    x, _ = batch()
    rule = make("stdl", small(), x)
    expected = rule.predict(x, T)
    for part in rule.subnetworks[:-1]:
        part.classifier = None
    assert torch.equal(rule.predict(x, T), expected)


@pytest.mark.parametrize("name", ["bptt", "stdl"])
@pytest.mark.parametrize("training", [True, False])
def test_leaves_everything_as_it_was(name, training):
    data = batches(1)
    rule = make(name, small(), data[0][0])
    train(rule, data)
    rule.model.train(training)
    before, input_before = numbers(rule), data[0][0].clone()
    rule.predict(data[0][0], T)
    assert_same(before, numbers(rule))
    assert torch.equal(data[0][0], input_before)
    assert {module.training for module in rule.model.modules()} == {training}
    assert all(module.membrane is None for module in rule.modules() if isinstance(module, FusedLIF))
    assert all(p.grad is None for p in rule.model.parameters())


def test_training_goes_on_as_if_nobody_had_asked():
    data = batches(3)
    asked, not_asked = (make("stdl", small(), data[0][0]) for _ in range(2))
    for x, y in data:
        asked.predict(torch.randn(7, *x.shape[1:]), 2)
        asked.step(x, y, T)
        not_asked.step(x, y, T)
    assert_same(numbers(asked), numbers(not_asked))


@pytest.mark.parametrize("memory", ["lean", "paper"])
@pytest.mark.parametrize("name", ["resnet18", "vgg16", "sew_resnet34"])
def test_in_inference_mode(name, memory):
    x, y = batch(name)
    rule = make("stdl", small(name), x, memory=memory)
    expected = rule.predict(x, T)
    with torch.inference_mode():
        found = rule.predict(x, T)
    assert torch.equal(found, expected)
    rule.step(x, y, T)  # and training goes on


def test_any_batch_size():
    """One sample alone too: batch norm uses what it has learned."""
    x, _ = batch()
    rule = make("stdl", small(), x)
    together = rule.predict(x, T)
    alone = torch.cat([rule.predict(x[i : i + 1], T) for i in range(len(x))])
    torch.testing.assert_close(together, alone)


def test_states_left_from_elsewhere_do_not_matter():
    x, _ = batch()
    rule = make("stdl", small(), x)
    expected = rule.predict(x, T)
    with torch.no_grad():
        rule.model.eval()(torch.randn(7, *x.shape[1:]))
    assert torch.equal(rule.predict(x, T), expected)


def test_training_mode_comes_back_after_an_error():
    x, _ = batch()
    rule = make("stdl", small(), x)
    rule.model.train()
    rule.model[-1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rule.predict(x, T)
    assert all(module.training for module in rule.model.modules())
    assert all(module.membrane is None for module in rule.modules() if isinstance(module, FusedLIF))
