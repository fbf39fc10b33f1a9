"""The most exact rule that fits a number of bytes."""

import pytest
import torch

from stdl_engine.planning.budgets import OverBudget
from stdl_engine.planning.planner import measure, predict
from stdl_engine.planning.tradeoff import by_cutting
from stdl_engine.rules import BPTT, SLTT, STDL, auto

from ..planning.fit_nets import IMAGE, SGD, convolutional

T, X = 3, torch.randn(8, *IMAGE)


def peak_of(kind, recompute):
    return predict(kind, convolutional(), SGD, X, T, recompute=recompute, steps=T).peak_bytes


def test_the_first_that_fits():
    everything, least = peak_of(BPTT, "none"), peak_of(BPTT, "twice")
    for budget, kind, again in ((everything, BPTT, False), (least, BPTT, True), (int(0.9 * least), STDL, None)):
        rule = auto(convolutional(), SGD, X, budget=budget, steps=T)
        assert type(rule) is kind
        found = measure(rule, X, torch.randint(10, (8,)), T)
        assert found.peak_bytes <= budget
        assert again is None or bool(found.recompute) is again


def test_in_less_than_is_possible():
    with pytest.raises(OverBudget, match="the smallest budget that works is"):
        auto(convolutional(), SGD, X, budget="20kB", steps=T)


@pytest.mark.parametrize("budget", [None, 0.5, "published"])
def test_bytes_are_needed(budget):
    with pytest.raises(ValueError, match="a budget in bytes"):
        auto(convolutional(), SGD, X, budget=budget, steps=T)


def test_cutting_goes_down_to_the_least():
    most = peak_of(SLTT, "none")
    found = list(by_cutting(STDL, convolutional(), SGD, X, T, most=most))
    peaks = [step.peak_bytes for step in found]
    assert peaks == sorted(set(peaks), reverse=True)
    assert (len(found[0].subnetworks), found[0].recompute, found[0].cost) == (1, [], 1.0)
    assert all(step.recompute or len(step.subnetworks) > 1 for step in found[1:])
    assert len(found) > 1
