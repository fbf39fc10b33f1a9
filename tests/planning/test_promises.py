"""A budget in bytes holds whatever else was chosen: layout, precision, neuron, frames; and what would break it is
refused."""

import itertools

import pytest
import torch

from stdl_engine import FusedALIF, FusedLIF, FusedPLIF
from stdl_engine.planning.planner import measure, predict
from stdl_engine.rules import SLTT, STDL

from .fit_nets import ADAMW, IMAGE, SGD, convolutional, counting, residual

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
BATCH, T = 8, 3


def made(network, layout, precision="fp32", sequence=False, share=0.8, optimizer=SGD, **options):
    """A rule under a share of what the whole network takes, or the smallest budget; its sample."""
    model = network().to(memory_format=LAYOUTS[layout])
    x = torch.randn(BATCH, *IMAGE).contiguous(memory_format=LAYOUTS[layout])
    options |= {"precision": precision, "sequence": sequence}
    whole = predict(SLTT, model, optimizer, x, T, **options).peak_bytes
    budget = int(share * whole)
    try:
        return STDL(model, optimizer, x, budget=budget, steps=T, **options), x
    except ValueError as error:
        return STDL(model, optimizer, x, budget=int(str(error).split("works is ")[1].split()[0]), steps=T, **options), x


CHOICES = ((convolutional, counting), tuple(LAYOUTS), ("fp32", "bf16"), ("lean", "paper"), (False, True))
COVERING = [
    (network, layout, precision, memory, sequence)
    for network, layout, precision, memory, sequence in itertools.product(*CHOICES)
    if ((network is counting) + (layout == "channels_last") + (memory == "paper")) % 2 == 0
    and ((network is counting) + (precision == "bf16") + sequence) % 2 == 0
]
"""A quarter of all combinations, in which any two of the five choices meet in every way."""


@pytest.mark.parametrize(("network", "layout", "precision", "memory", "sequence"), COVERING)
def test_real_tensors_keep_to_it(network, layout, precision, memory, sequence):
    rule, x = made(network, layout, precision, sequence, memory=memory)
    x = torch.stack([x] * T) if sequence else x
    assert measure(rule, x, torch.randint(10, (BATCH,)), T).peak_bytes <= rule.budget.size


@pytest.mark.parametrize(
    ("neuron", "layout"),
    [
        (FusedLIF, "contiguous"),
        (FusedLIF, "channels_last"),
        (FusedPLIF, "channels_last"),
        (FusedALIF, "contiguous"),
    ],
)
def test_every_neuron(neuron, layout):
    rule, x = made(lambda: residual(neuron), layout, optimizer=ADAMW)
    assert measure(rule, x, torch.randint(10, (BATCH,)), T).peak_bytes <= rule.budget.size


def test_a_model_in_double_precision():
    model, x = convolutional().double(), torch.randn(BATCH, *IMAGE).double()
    whole = predict(SLTT, model, SGD, x, T).peak_bytes
    rule = STDL(model, SGD, x, budget=int(0.9 * whole), steps=T)
    assert {p.dtype for part in rule.subnetworks for p in part.parameters()} == {torch.float64}
    assert measure(rule, x, torch.randint(10, (BATCH,)), T).peak_bytes <= 0.9 * whole


class TestRefusals:
    """A batch for which the budget was not planned."""

    @pytest.fixture(scope="class")
    def rule(self):
        return made(convolutional, "contiguous")[0]

    def test_frames(self, rule):
        x, y = torch.randn(T, BATCH, *IMAGE), torch.randint(10, (BATCH,))
        with pytest.raises(ValueError, match=r"^the budget of \S+ \w+ was planned for one image .*pass sequence=True"):
            rule.step(x, y, T)

    def test_more_samples(self, rule):
        x, y = torch.randn(BATCH + 1, *IMAGE), torch.randint(10, (BATCH + 1,))
        with pytest.raises(ValueError, match=r"was planned for batches of 8, and this one has 9 samples"):
            rule.step(x, y, T)

    def test_more_time_steps(self, rule):
        x, y = torch.randn(BATCH, *IMAGE), torch.randint(10, (BATCH,))
        with pytest.raises(ValueError, match=r"was planned for 3 time steps, and these are 4: pass steps=4"):
            rule.step(x, y, T + 1)

    def test_fewer_of_all_are_welcome(self, rule):
        x, y = torch.randn(BATCH - 1, *IMAGE), torch.randint(10, (BATCH - 1,))
        assert rule.step(x, y, T - 1).logits.shape == (BATCH - 1, 10)

    @pytest.mark.parametrize("budget", [0.9, "700kB"])
    def test_a_sample_that_is_a_sequence(self, budget):
        with pytest.raises(ValueError, match=r"^the sample has shape \(3, 8, 3, 16, 16\), which is a sequence: pass o"):
            STDL(convolutional(), SGD, torch.randn(T, BATCH, *IMAGE), budget=budget)

    @pytest.mark.parametrize(("shape", "message"), [((3, 16, 16), r"pass one batch"), ((8, 2, 16, 16), r"takes 3 ch")])
    def test_other_shapes(self, shape, message):
        with pytest.raises(ValueError, match=message):
            STDL(convolutional(), SGD, torch.randn(shape), budget=0.9)


def test_budgets_under_a_fraction_promise_nothing_in_bytes():
    rule = STDL(convolutional(), SGD, torch.randn(BATCH, *IMAGE), budget=0.9)
    for batch, steps in itertools.product((4, 16), (1, 5)):
        x = torch.randn(steps, batch, *IMAGE)
        assert rule.step(x, torch.randint(10, (batch,)), steps).logits.shape == (batch, 10)
