"""Points of SpikingJelly's memory optimiser: what they cost, and that those in the repository are what was measured."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("spikingjelly")

from bench import jelly, memopt, memopt_points
from bench.memory import fake_peak
from bench.results import read
from stdl_engine.building import optimizer_factory, sample_batch, shapes_of
from stdl_engine.planning.fake import fake_copy, fake_like, faking
from stdl_engine.planning.work import Work
from stdl_engine.rules import BPTT
from stdl_engine.tradeoff import read_points

RESULTS = Path(__file__).parents[2] / "bench" / "results"
TRACKED = RESULTS / "memopt_points.csv"
WIDTH = 0.25


def test_the_work_of_the_network_is_that_of_ours():
    recipe = memopt_points.recipe_of((WIDTH, 4, 2))
    counts = memopt_points.multiply_adds(WIDTH)
    model, sample = shapes_of(recipe), sample_batch(recipe, "meta")
    with faking():
        rule = BPTT(fake_copy(model), optimizer_factory(recipe), fake_like(sample))
        assert Work.of(rule.subnetworks, rule.flow, fake_like(sample)).network == sum(counts.values())


def test_what_is_wrapped_runs_forward_once_more():
    counts = memopt_points.multiply_adds(WIDTH)
    total, head = sum(counts.values()), counts["9.linear"]
    shortcuts = sum(count for name, count in counts.items() if "shortcut" in name)

    def again(wrapped):
        return round((memopt_points.relative_work(wrapped, WIDTH) - 1) * 3 * total)

    assert again((memopt.NOTHING,) * memopt.UNITS) == 0
    assert again((memopt.WHOLE,) * memopt.UNITS) == total - head
    halves = (memopt.WHOLE, *(memopt.HALVES,) * (memopt.UNITS - 1))
    assert again(halves) == total - head - shortcuts
    assert again((*(memopt.NOTHING,) * 2, frozenset({"second"}), *(memopt.NOTHING,) * 6)) == counts["2.conv2"]


def test_names_of_what_is_wrapped():
    wrapped = (memopt.WHOLE, memopt.NOTHING, memopt.HALVES, frozenset({"second"}))
    assert list(memopt_points.names(wrapped)) == ["0", "2.1", "2.2", "3.2"]


@pytest.mark.parametrize("size", memopt_points.SIZES, ids=str)
def test_the_points_in_the_repository_are_read(size):
    found, strangers = read_points(TRACKED, memopt_points.recipe_of(size))
    assert len(found) == len(memopt_points.WAYS)
    assert strangers == len(found) * (len(memopt_points.SIZES) - 1)
    assert [point.cost for point in found if point.rule == "SpikingJelly BPTT"] == [1.0]
    assert all(point.cost > 1 and point.recompute for point in found if point.rule == "SpikingJelly memopt")


def test_the_points_in_the_repository_are_what_was_measured():
    """On real tensors, by the last published run of the benchmark `training`."""
    measured = {
        (row.shape, row.who): row.as_dict()["value"] for row in read(RESULTS / "training.csv") if row.unit == "MB"
    }
    compared = 0
    with TRACKED.open() as file:
        for row in csv.DictReader(file):
            shape = f"width {row['width']}, batch {row['batch_size']}, T={row['steps']}"
            who = row["rule"] + (f", {row['memory']}" if row["memory"] != "plain" else "")
            if (shape, who) in measured:
                assert f"{int(row['peak_bytes']) / 1e6:.6g}" == measured[shape, who], (shape, who)
                compared += 1
    assert compared == 2 * len(memopt_points.WAYS)


def test_the_points_in_the_repository_are_what_is_counted_now():
    recipe = memopt_points.recipe_of((0.25, 64, 4))
    found, _ = read_points(TRACKED, recipe)
    names = {point.memory: name for point, name in zip(found, memopt_points.WAYS, strict=True)}
    for point in found:
        if jelly.VARIANTS[names[point.memory]].optimized in ("", "memory"):  # others take longer
            assert point.peak_bytes == fake_peak(names[point.memory], 4, 64, 0.25)
