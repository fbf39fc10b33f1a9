"""Budgets in bytes by running pieces again: kept to the byte, at the least cost there is."""

import itertools

import pytest
import torch
from torch import nn

from stdl_engine.planning.fake import faking
from stdl_engine.planning.levels import Levels
from stdl_engine.planning.plan import Recompute
from stdl_engine.planning.planner import measure, predict
from stdl_engine.rules import BPTT, ELL, SLTT, STDL
from stdl_engine.units import ConvUnit, Head, ResidualBlock

from .fit_nets import IMAGE, SGD, counting, residual

BATCH, T = 16, 4


def levels_for(kind, network, T=T):
    rule = kind(network(), SGD, torch.empty(BATCH, *IMAGE))
    return Levels(rule.network, rule.plan, rule.trial, rule.sample, T, sequence=False)


def peaks(levels):
    """Of all mixtures of levels, what they cost and the measured peak."""
    names = list(levels.work.stages)
    for choice in itertools.product(range(levels.deepest + 1), repeat=len(names)):
        recompute = Recompute(dict(zip(names, choice, strict=True)))
        plan = levels.plan.recomputing(recompute.levels)
        yield levels.work.again(recompute), levels.whole_step(plan).peak_bytes


def one_block():
    return nn.Sequential(ConvUnit(3, 8), ResidualBlock(8, 16, stride=2), Head(16, 10))


def two_layers():
    return nn.Sequential(ConvUnit(3, 8), ConvUnit(8, 16), Head(16, 10))


@pytest.mark.parametrize(("kind", "network"), [(SLTT, one_block), (BPTT, two_layers)])
def test_no_choice_that_fits_costs_less(kind, network):
    """Against every one of the mixtures, at budgets from the least that works up to that of keeping everything."""
    with faking():
        levels = levels_for(kind, network, T=2)
        table = sorted(set(peaks(levels)))
        sizes = sorted({peak for _, peak in table})
        for budget in sizes[:: max(1, len(sizes) // 6)]:
            plan = levels.within(budget)
            assert levels.whole_step(plan).peak_bytes <= budget
            # Less than any of them where backward also takes time in segments, which they do not.
            assert levels.work.again(plan.recompute) <= min(cost for cost, peak in table if peak <= budget)


@pytest.mark.parametrize(("kind", "network"), [(BPTT, residual), (SLTT, counting), (ELL, residual)])
def test_real_tensors_peak_at_the_predicted_byte(kind, network):
    x, y = torch.randn(BATCH, *IMAGE), torch.randint(10, (BATCH,))
    plain = predict(kind, network(), SGD, x, T).peak_bytes
    least = predict(kind, network(), SGD, x, T, recompute="twice").peak_bytes
    assert least < plain
    for budget in (least, (least + plain) // 2):
        rule = kind(network(), SGD, x, budget=budget, steps=T)
        found = measure(rule, x, y, T).peak_bytes
        assert found <= budget
        assert found == predict(kind, network(), SGD, x, T, plan=rule.plan).peak_bytes


@pytest.mark.parametrize("way", ["all", "twice"])
@pytest.mark.parametrize("sequence", [False, True], ids=["image", "frames"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
def test_through_time_the_prediction_is_exact(way, sequence, layout):
    x = torch.randn(BATCH, *IMAGE).contiguous(memory_format=layout)
    model = residual().to(memory_format=layout)
    frames = torch.stack([x] * 9) if sequence else x
    options = {"recompute": way, "sequence": sequence, "steps": 9}
    predicted = predict(BPTT, model, SGD, x, 9, **options).peak_bytes
    rule = BPTT(model, SGD, x, **options)
    assert measure(rule, frames, torch.randint(10, (BATCH,)), 9).peak_bytes == predicted


def test_segments_of_time_take_less_where_there_are_many_steps():
    with torch.device("meta"):
        model = residual()
    x = torch.empty(BATCH, *IMAGE)
    rule = BPTT(residual(), SGD, x, recompute="all", steps=40)
    assert 1 < rule.plan.recompute.segment < 40
    together = rule.plan.recomputing(segment=None)
    peaks = [predict(BPTT, model, SGD, x, 40, plan=plan).peak_bytes for plan in (rule.plan, together)]
    assert peaks[0] < 0.8 * peaks[1]
    assert BPTT(residual(), SGD, x, recompute="all", steps=1).plan.recompute.segment == 1


class TestBudgets:
    """What a user meets."""

    x = torch.empty(BATCH, *IMAGE)

    @pytest.mark.parametrize("kind", [BPTT, SLTT, ELL])
    def test_nothing_runs_again_where_everything_fits(self, kind):
        rule = kind(residual(), SGD, self.x, budget="1GB", steps=T)
        assert not rule.plan.recompute.levels

    @pytest.mark.parametrize("kind", [BPTT, SLTT, ELL])
    def test_too_small_names_the_least_that_works(self, kind):
        with pytest.raises(ValueError, match=r"even if every piece runs again: the smallest budget that w") as error:
            kind(residual(), SGD, self.x, budget="100kB", steps=T)
        least = int(str(error.value).split("works is ")[1].split()[0])
        assert kind(residual(), SGD, self.x, budget=least, steps=T).plan.recompute.levels

    def test_a_share_is_for_stdl(self):
        with pytest.raises(ValueError, match=r'^the budget of SLTT is in bytes: write for example "2GiB" or 2e9\.$'):
            SLTT(residual(), SGD, self.x, budget=0.5)

    def test_without_recomputation_it_must_fit_as_it_is(self):
        with pytest.raises(ValueError, match=r'and the budget is 500.00 kB: let pieces run again \(recompute="auto"\)'):
            SLTT(residual(), SGD, self.x, budget="500kB", recompute="none", steps=T)

    def test_more_time_steps_are_refused(self):
        rule = BPTT(residual(), SGD, self.x, budget="1GB", steps=2)
        with pytest.raises(ValueError, match=r"was planned for 2 time steps, and these are 4"):
            rule.step(torch.randn(BATCH, *IMAGE), torch.randint(10, (BATCH,)), 4)


def test_stdl_recomputes_where_that_saves_a_cut():
    x = torch.empty(BATCH, *IMAGE)
    plain = predict(SLTT, residual(), SGD, x, T).peak_bytes
    least = predict(SLTT, residual(), SGD, x, T, recompute="all").peak_bytes
    budget = (plain + least) // 2
    cut = STDL(residual(), SGD, x, budget=budget, steps=T, recompute="none")
    whole = STDL(residual(), SGD, x, budget=budget, steps=T)
    assert (len(cut.plan.parts), len(whole.plan.parts)) == (2, 1)
    assert whole.plan.recompute.levels
    assert not cut.plan.recompute.levels
    roomy = STDL(residual(), SGD, x, budget=plain, steps=T)
    assert (len(roomy.plan.parts), dict(roomy.plan.recompute.levels)) == (1, {})
