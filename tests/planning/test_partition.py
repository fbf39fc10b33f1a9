"""Algorithm 1: the fewest runs that fit, against every way there is to cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stdl_engine.planning.partition import partition, partition_by, smallest_budget

footprints = st.lists(st.integers(0, 20), min_size=1, max_size=9)


def every_cut(count: int):
    """All ways to cut `count` units into runs."""
    for size in range(count):
        for edges in itertools.combinations(range(1, count), size):
            yield [range(a, b) for a, b in itertools.pairwise((0, *edges, count))]


def is_cut(runs: list[range], count: int) -> bool:
    return all(runs) and [unit for run in runs for unit in run] == list(range(count))


@settings(deadline=None)
@given(footprints, st.integers(0, 60))
def test_fewest_runs_that_fit(costs, extra):
    budget = max(costs) + extra
    runs = partition(costs, budget)

    def fits(run):
        return sum(costs[unit] for unit in run) <= budget

    assert is_cut(runs, len(costs))
    assert all(map(fits, runs))
    assert len(runs) == min(len(cut) for cut in every_cut(len(costs)) if all(map(fits, cut)))


@settings(deadline=None)
@given(footprints, st.integers(0, 60))
def test_a_sum_is_one_way_to_say_what_fits(costs, extra):
    budget = max(costs) + extra
    found = partition_by(len(costs), lambda run: sum(costs[unit] for unit in run) <= budget)
    assert found == partition(costs, budget)


@settings(deadline=None)
@given(st.data(), footprints, st.integers(0, 80))
def test_fewest_runs_with_room_for_an_auxiliary_network(data, costs, budget):
    """Every run but the last needs something on top, never more than the unit after it."""
    on_top = [data.draw(st.integers(0, following)) for following in costs[1:]] + [0]

    def fits(run):
        return sum(costs[unit] for unit in run) + on_top[run.stop - 1] <= budget

    possible = [len(cut) for cut in every_cut(len(costs)) if all(map(fits, cut))]
    if possible:
        runs = partition_by(len(costs), fits)
        assert is_cut(runs, len(costs))
        assert all(map(fits, runs))
        assert len(runs) == min(possible)
    else:
        with pytest.raises(LookupError):
            partition_by(len(costs), fits)


@settings(deadline=None)
@given(st.data(), st.integers(1, 6))
def test_smallest_budget_whatever_runs_need(data, count):
    needed = {range(a, b): data.draw(st.integers(0, 12)) for b in range(1, count + 1) for a in range(b)}

    def gets_through(budget):
        try:
            return bool(partition_by(count, lambda run: needed[run] <= budget))
        except LookupError:
            return False

    assert smallest_budget(count, needed.__getitem__) == min(filter(gets_through, range(13)))


def test_runs_are_filled_from_the_front():
    assert partition([1, 1, 1, 1, 1], budget=2) == [range(0, 2), range(2, 4), range(4, 5)]


@pytest.mark.parametrize("budget", [10, 10.5, float("inf")])
def test_one_run_if_all_fits(budget):
    assert partition([3, 3, 4], budget) == [range(0, 3)]


def test_every_unit_alone_at_the_smallest_budget():
    assert partition([4, 4, 4], budget=4) == [range(0, 1), range(1, 2), range(2, 3)]


def test_nothing_to_cut():
    assert partition([], budget=1) == []
    assert partition_by(0, lambda run: True) == []


def test_too_small_a_budget_names_the_unit_and_the_smallest_that_does():
    costs, labels = [2, 7, 9, 1], ["64C3", "64R", "128R(s2)", "128R"]
    with pytest.raises(ValueError, match=r"^64R alone needs 7 of a budget of 5: the smallest budget is 9\.$"):
        partition(costs, 5, labels)
    with pytest.raises(ValueError, match=r"^unit 2 alone needs 9 of a budget of 8\.5: the smallest budget is 9\.$"):
        partition(costs, 8.5)
    assert partition(costs, 9) == [range(0, 2), range(2, 3), range(3, 4)]


def test_the_last_run_may_fit_where_a_shorter_one_does_not():
    """The rest of the network needs no auxiliary network, so it may be all that fits."""
    assert partition_by(3, lambda run: run.stop == 3) == [range(0, 3)]


def test_where_no_run_fits_the_unit_is_named():
    with pytest.raises(LookupError) as stuck:
        partition_by(4, lambda run: 2 not in run)
    assert stuck.value.args == (2,)


def test_each_run_is_asked_about_once_or_twice():
    asked = []

    def fits(run):
        asked.append(run)
        return len(run) <= 3

    partition_by(300, fits)
    assert len(asked) <= 2 * 300
