"""The planned peak of a partition never exceeds the bytes that it was made for."""

import re

import pytest
import torch

from stdl_engine.models import build_model
from stdl_engine.neurons import Neuron
from stdl_engine.planning.planner import measure, predict
from stdl_engine.rules import SLTT, STDL

from .fit_nets import IMAGE, SGD, convolutional, counting, residual


def promised(model, optimizer, batch, T, budget, recompute="none", **options):
    """A rule for a budget, kept to by cuts alone; its planned peak is within it."""
    x = torch.randn(batch, *IMAGE)
    rule = STDL(model, optimizer, x, budget=budget, steps=T, recompute=recompute, **options)
    limit = rule.budget.size
    peak = predict(STDL, model, optimizer, x.shape, T, plan=rule.plan, **options).peak_bytes
    assert peak <= limit
    return rule, x, peak


class TestPromise:
    @pytest.mark.parametrize("share", [0.98, 0.85])
    @pytest.mark.parametrize(
        ("network", "memory", "batch", "T", "sequence"),
        [
            (residual, "lean", 4, 4, True),
            (convolutional, "lean", 16, 6, False),
            (counting, "paper", 8, 2, False),
        ],
        ids=lambda value: getattr(value, "__name__", str(value)),
    )
    def test_over_networks_batches_and_budgets(self, network, memory, batch, T, sequence, share):
        """A share of what the whole network takes, or the smallest budget there is if that is more."""
        model, options = network(), {"memory": memory, "sequence": sequence}
        whole = predict(SLTT, model, SGD, (batch, *IMAGE), T, **options).peak_bytes
        budget = int(share * whole)
        try:
            rule, _, _ = promised(model, SGD, batch, T, budget, **options)
        except ValueError as error:
            smallest = int(re.search(r"works is (\d+) bytes", str(error))[1])
            assert smallest > budget
            _, _, peak = promised(model, SGD, batch, T, smallest, **options)
            assert peak == smallest
        else:
            assert len(rule.plan.parts) > 1

    def test_a_network_of_the_paper(self):
        model = build_model("vgg11", width=0.0625)
        whole = predict(SLTT, model, SGD, (16, *IMAGE), 2).peak_bytes
        rule, x, peak = promised(model, SGD, 16, 2, int(0.75 * whole))
        assert len(rule.plan.parts) > 1
        assert measure(rule, x, torch.randint(10, (16,)), 2).peak_bytes == peak  # real tensors too

    def test_more_memory_never_means_more_subnetworks(self):
        model, counts = convolutional(), []
        whole = predict(SLTT, model, SGD, (16, *IMAGE), 2).peak_bytes
        for share in (0.8, 0.9, 1.0):
            rule, _, peak = promised(model, SGD, 16, 2, int(share * whole))
            counts.append(len(rule.plan.parts))
        assert counts == sorted(counts, reverse=True)
        assert counts[0] > counts[-1] == 1  # enough for the whole network leaves it whole
        assert peak == whole

    @pytest.mark.parametrize(("network", "share"), [(residual, 0.95), (convolutional, 0.85)])
    def test_running_pieces_again_may_save_subnetworks(self, network, share):
        model = network()
        budget = int(share * predict(SLTT, model, SGD, (16, *IMAGE), 2).peak_bytes)
        again, cut = (promised(model, SGD, 16, 2, budget, how)[0].plan for how in ("auto", "none"))
        assert again.recompute.any
        assert len(again.parts) < len(cut.parts)

    def test_more_time_steps_are_counted(self):
        """Spikes wait between subnetworks for all of them: a plan for T=2 need not do for T=40."""
        model, shape = convolutional(), (8, *IMAGE)
        plan = STDL(model, SGD, torch.randn(shape), budget=700_000, steps=2).plan
        assert predict(STDL, model, SGD, shape, 2, plan=plan).peak_bytes <= 700_000
        assert predict(STDL, model, SGD, shape, 40, plan=plan).peak_bytes > 700_000

    def test_written_with_a_unit(self):
        model, x = convolutional(), torch.randn(8, *IMAGE)
        rule = STDL(model, SGD, x, budget="0.7 MB", steps=2)
        assert rule.budget.size == 700_000
        assert rule.plan == STDL(model, SGD, x, budget=700_000, steps=2).plan

    def test_the_plan_says_its_peak(self):
        rule, _, peak = promised(convolutional(), SGD, 8, 2, 700_000)
        assert f"peak {peak / 1e3:.2f} kB of a budget of 700.00 kB, batch 8, 2 time steps" in str(rule.plan)

    def test_the_plan_says_what_each_subnetwork_takes(self):
        rule, _, peak = promised(convolutional(), SGD, 8, 2, 700_000)
        heading, *lines = str(rule.plan).splitlines()
        place = heading.index("of budget")
        shares = [float(line[place:].rstrip("%")) for line in lines[: len(rule.plan.parts)]]
        assert max(shares) == pytest.approx(100 * peak / 700_000, abs=0.05)
        assert min(shares) > 0

    @pytest.mark.parametrize(("variant", "deepest"), [("linear", 0), ("two_layer", 1), ("conv1x1", 3)])
    def test_ablations(self, variant, deepest):
        model, x = convolutional(), torch.randn(8, *IMAGE)
        rule = STDL(model, SGD, x, budget=700_000, steps=2, variant=variant, recompute="none")
        assert measure(rule, x, torch.randint(10, (8,)), 2).peak_bytes <= 700_000
        depths = [len(part.auxiliary) for part in rule.plan.parts[:-1]]
        assert depths
        assert max(depths) <= deepest

    def test_layerwise(self):
        model, x = convolutional(), torch.randn(8, *IMAGE)
        rule = STDL(model, SGD, x, budget=900_000, steps=2, layerwise=True)
        assert [part.units for part in rule.plan.parts] == [range(unit, unit + 1) for unit in range(4)]
        assert measure(rule, x, torch.randint(10, (8,)), 2).peak_bytes <= 900_000
        with pytest.raises(ValueError, match="the smallest budget that works is"):
            STDL(model, SGD, x, budget=2000, steps=2, layerwise=True)

    def test_inside_the_planner(self):
        """Fake tensors inside fake tensors; and what is kept is kept under autocast."""
        model, options = convolutional(), {"autocast": torch.bfloat16}
        whole = predict(SLTT, model, SGD, (8, *IMAGE), 2, **options).peak_bytes
        for recompute, cuts in (("none", True), ("auto", False)):
            ways = {"steps": 2, "recompute": recompute}
            found = predict(STDL, model, SGD, (8, *IMAGE), 2, budget=int(0.95 * whole), **ways, **options)
            assert found.peak_bytes <= int(0.95 * whole)
            assert (len(found.subnetworks) > 1) is cuts
            assert bool(found.recompute) is not cuts

    def test_the_model_is_not_touched(self):
        model = convolutional().eval()
        before = {name: t.clone() for name, t in model.state_dict().items()}
        STDL(model, SGD, torch.randn(8, *IMAGE), budget=700_000, steps=2, plan=None)
        assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())
        assert all(m.membrane is None for m in model.modules() if isinstance(m, Neuron))
        assert not any(m._forward_hooks for m in model.modules())
