"""A plan that is kept as plain values comes back as it was, and values of another network are refused."""

import json
from dataclasses import replace

import pytest
import torch

from stdl_engine.building import make_rule, sample_batch, shapes_of
from stdl_engine.planning.network import Network
from stdl_engine.planning.plan import Plan, Recompute, plan_with_linear_heads, plan_within
from stdl_engine.planning.plan_values import plan_of, values_of
from stdl_engine.recipes import RECIPES
from stdl_engine.rules import BPTT, ELL, STDL, EvenLocal, base, stdl
from stdl_engine.rules.auto import auto

from ..rules.nets import batch, sgd, small

LEVELS = Recompute({(0, "1:4R.2"): 1, (1, "3:8R"): 2}, default=0, segment=3)


def kept(plan: Plan, network: Network) -> Plan:
    """The plan after a checkpoint."""
    return plan_of(json.loads(json.dumps(values_of(plan))), network)


@pytest.mark.parametrize("variant", ["stdl", "conv3x3", "two_layer", "linear", "depth_only"])
@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_a_cut_comes_back(variant, memory):
    model, (x, _) = small("vgg11"), batch("vgg11")
    plan = STDL(model, sgd, x, budget=0.6, variant=variant, memory=memory).plan
    assert len(plan.parts) > 1
    network = Network(small("vgg11"), tuple(x.shape[1:]), memory)
    assert kept(plan, network) == plan
    plan = replace(plan, recompute=LEVELS, chunk=4, notes=("a note",), byte_shares=(0.5, 0.25))
    assert kept(plan, network) == plan
    assert str(kept(plan, network)) == str(plan)


@pytest.mark.parametrize("make", [ELL, EvenLocal, BPTT])
def test_cuts_of_other_rules_come_back(make):
    model, (x, _) = small(), batch()
    plan = make(model, sgd, x, **({"K": 3} if make is EvenLocal else {})).plan
    assert kept(plan, Network(small(), tuple(x.shape[1:]), "lean")) == plan


def test_what_a_budget_in_bytes_has_decided_comes_back():
    model, (x, _) = small("vgg11"), batch("vgg11")
    plan = auto(model, sgd, x, budget="900kB", steps=2).plan
    assert plan.byte_shares
    assert plan.recompute.any
    again = kept(plan, Network(small("vgg11"), tuple(x.shape[1:]), "lean"))
    assert again == plan
    assert str(again) == str(plan)


def test_values_of_another_network_are_refused():
    network = Network(small(), (3, 8, 8), "lean")
    values = values_of(plan_with_linear_heads(network, [range(4), range(4, len(network.units))]))
    other = Network(small("vgg11"), (3, 16, 16), "lean")
    with pytest.raises(ValueError, match=r"of a network of 9 units, and this one has 8: build the same model\."):
        plan_of(values, other)


@pytest.mark.parametrize("change", [{"variant": "no such"}, {"parts": [[0, 9, [40]]]}, {"chunk": ...}])
def test_broken_values_are_refused(change):
    network = Network(small(), (3, 8, 8), "lean")
    values = values_of(plan_within(network, 0.6 * network.total)) | change
    values = {name: value for name, value in values.items() if value is not ...}
    with pytest.raises(ValueError, match=r"not what is kept of a plan \(.*\): start a new run\."):
        plan_of(values, network)


def test_a_rule_of_a_kept_plan_is_the_rule(tmp_path):
    model, (x, _) = small("vgg11"), batch("vgg11")
    rule = STDL(model, sgd, x, budget=0.6)
    torch.save(rule.state_dict(), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    again = STDL(small("vgg11"), sgd, x, plan=plan_of(state["cut"], rule.network))
    again.load_state_dict(state)
    assert again.plan == rule.plan


def test_a_run_that_continues_makes_its_rule_without_a_search(monkeypatch):
    recipe = replace(RECIPES["digits"], width=0.0625, batch_size=8, steps=2, rule="auto", budget="1.2MB")
    given = recipe, shapes_of(recipe), sample_batch(recipe, torch.device("meta")), 1
    rule = make_rule(*given)
    assert rule.plan.recompute.any

    def search(*_, **__):
        raise AssertionError("the plan was searched for again")

    for module, name in ((base, "recompute_within"), (base, "chunk_within"), (stdl, "plan_within_bytes")):
        monkeypatch.setattr(module, name, search)
    with pytest.raises(AssertionError, match="searched for again"):
        make_rule(*given)
    again = make_rule(*given, saved=rule.state_dict())
    assert type(again) is type(rule)
    assert again.plan == rule.plan
