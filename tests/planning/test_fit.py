"""A budget in bytes is a promise: kept to the byte, with the fewest subnetworks and the deepest auxiliary networks."""

import itertools
import re

import pytest
import torch

from stdl_engine.planning.auxiliary import VARIANTS
from stdl_engine.planning.fake import faking
from stdl_engine.planning.fit import Fitting, last_true
from stdl_engine.planning.profile import Step
from stdl_engine.rules import SLTT

from .fit_nets import ADAMW, IMAGE, SGD, convolutional, counting, residual

CASES = {  # network, memory, order, optimizer, batch, time steps, sequence, autocast
    "residual": (residual, "lean", "subnetwork", SGD, 16, 4, False, False),
    "convolutional, plain, sequence": (convolutional, "paper", "time", ADAMW, 4, 3, True, False),
    "sums of spikes, bf16": (counting, "lean", "subnetwork", SGD, 8, 2, False, True),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """A search, with the peak of every partition that has each run's smallest auxiliary network, by trying them."""
    network, memory, order, optimizer, batch, T, sequence, autocast = CASES[request.param]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), faking():
        rule = SLTT(network(), optimizer, torch.empty(batch, *IMAGE), memory=memory, order=order, sequence=sequence)
        fitting = Fitting(rule.network, rule.trial, rule.sample, T, VARIANTS["stdl"], sequence)
        table = []
        for cut in itertools.product((False, True), repeat=3):
            edges = [0, *(place for place, here in enumerate(cut, 1) if here), 4]
            parts = [fitting.choices(range(*edge))[0] for edge in itertools.pairwise(edges)]
            table.append((fitting.whole_step(fitting.plan(parts)).peak_bytes, parts))
        yield fitting, table


def every_plan(fitting):
    """All partitions with all auxiliary networks: for each number of subnetworks the smallest peak there is."""
    least = {}

    def extend(first, step, number):
        if first == fitting.count:
            least[number] = min(least.get(number, float("inf")), fitting.base + step.peak)
        for run in (range(first, stop) for stop in range(first + 1, fitting.count + 1)):
            chains = [None] if run.stop == fitting.count else auxiliary_networks(fitting, run)
            for profile in {fitting.profile(fitting.part(run, layers)) for layers in chains}:
                extend(run.stop, step.then(profile), number + 1)

    extend(0, Step(), 0)
    return least


def fewest(table, budget):
    return min((len(parts) for peak, parts in table if peak <= budget), default=None)


def auxiliary_networks(fitting, run):
    """Every choice of later units."""
    later = range(run.stop, fitting.count)
    for depth in range(1, len(later) + 1):
        for path in itertools.combinations(later, depth):
            yield fitting.search_bytes.layers(run.stop - 1, path)


class TestSearch:
    def test_the_peak_of_any_partition_follows_from_its_parts(self, case):
        fitting, table = case
        assert [fitting.predicted(parts) for _, parts in table] == [peak for peak, _ in table]

    def test_fewest_subnetworks_at_every_budget(self, case):
        """No partition with any auxiliary networks has fewer."""
        fitting, table = case
        least = every_plan(fitting)
        for peak in {*(peak for peak, _ in table), *least.values()}:
            for budget in (peak - 1, peak, peak + 1000):
                parts = fitting.fewest(budget)
                expected = min((number for number, peak in least.items() if peak <= budget), default=None)
                assert (parts and len(parts)) == expected
                assert parts is None or fitting.predicted(parts) <= budget

    def test_budget_is_kept_and_used(self, case):
        """Measured; and no deeper auxiliary network fits in any place."""
        fitting, table = case
        peaks = sorted(peak for peak, _ in table)
        for budget in (peaks[0], peaks[3] + 9000, peaks[-1] + 20000):
            plan = fitting.best(budget)
            assert fitting.whole_step(plan).peak_bytes == fitting.predicted(plan.parts) <= budget
            assert len(plan.parts) == fewest(table, budget)
            for place, part in enumerate(plan.parts[:-1]):
                for layers in auxiliary_networks(fitting, part.units):
                    if len(layers) > len(part.auxiliary):
                        assert fitting.predicted(fitting.exchanged(plan.parts, place, layers)) > budget

    def test_impossible_budget_names_the_smallest_that_works(self, case):
        fitting, table = case
        with pytest.raises(ValueError, match=r"no partition of this network trains within 1\.00 kB") as error:
            fitting.best(1000)
        smallest = int(re.search(r"the smallest budget that works is (\d+) bytes", str(error.value))[1])
        assert smallest <= min(peak for peak, _ in table)
        assert fitting.whole_step(fitting.best(smallest)).peak_bytes == smallest
        with pytest.raises(ValueError, match=f"works is {smallest} bytes"):
            fitting.best(smallest - 1)

    def test_shortest_runs_come_first_and_end_where_their_units_alone_are_too_much(self, case):
        fitting, _ = case
        everything = list(fitting.runs_from(0, float("inf")))
        assert everything == [range(0, 1), range(0, 2), range(0, 3)]
        alone = fitting.base + fitting.profile(fitting.choices(range(0, 1))[0]).units
        assert list(fitting.runs_from(0, alone - 1)) == [range(0, 1)]
        for run in everything:  # a bound from below for every longer run
            longer = [fitting.profile(fitting.choices(other)[0]) for other in everything if other.stop > run.stop]
            assert all(fitting.profile(fitting.choices(run)[0]).units <= other.first for other in longer)


@pytest.mark.parametrize(("passing", "count"), [(1, 1), (1, 5), (3, 5), (5, 5), (4, 100), (100, 100)])
def test_last_true(passing, count):
    assert last_true(range(count), lambda item: item < passing) == passing - 1
