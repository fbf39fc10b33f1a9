"""The trace of a training step: the peak that is planned, and a snapshot that PyTorch's own tool reads."""

import pickle
from dataclasses import replace

import pytest
from torch.cuda import _memory_viz

from stdl_engine.analysis.snapshot import START, Space, as_file
from stdl_engine.analysis.trace import by_unit, recorded, unit_at, visits
from stdl_engine.building import predict_peak
from stdl_engine.memory.tracker import Place
from stdl_engine.planning.planner import PARTS
from stdl_engine.recipes import RECIPES, by_rule

SMALL = replace(RECIPES["digits"], width=0.05, batch_size=512, steps=3)
CASES = [(rule, memory) for rule in ("bptt", "sltt", "stdl") for memory in ("paper", "lean")]


@pytest.fixture(scope="module")
def recordings():
    return {case: recorded(by_rule(SMALL, *case)) for case in CASES}


@pytest.fixture(scope="module")
def predictions():
    return {case: predict_peak(by_rule(SMALL, *case)) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_the_highest_moment_is_the_predicted_peak(recordings, predictions, case):
    predicted = predictions[case]
    highest = max(visits(recordings[case]), key=lambda visit: visit.total)
    assert highest.total == predicted.peak_bytes
    assert dict(zip(PARTS, highest.parts, strict=True)) == predicted.parts
    assert highest.place == predicted.place


@pytest.mark.parametrize("case", CASES)
def test_bytes_add_up(recordings, case):
    recording = recordings[case]
    alive = sum(recording.held.values())
    assert alive == sum(recording.before)
    for moment in recording.moments:
        alive += moment.size
        assert moment.parts is None or alive == sum(moment.parts)
    assert alive < 1.1 * sum(recording.held.values()) + 1e5  # what is left are losses and logits


def test_bptt_grows_with_time_and_stdl_does_not(recordings):
    def rise(case):
        second, third = (max(size for at, _, size in by_unit(recordings[case], 3) if at == t) for t in (1, 2))
        return third / second  # in the first time step there are no states yet, and no gradients

    assert rise(("bptt", "paper")) > 1.05
    assert rise(("stdl", "paper")) < 1.01


def test_units_by_subnetwork(recordings):
    plan = recordings["stdl", "paper"].plan
    first, second = plan.parts[0].units, plan.parts[1].units
    assert unit_at(Place(0, 1, "0:64C3", "forward"), plan) == second.start
    assert unit_at(Place(0, 0, "99:10FC", "forward"), plan) == first.stop - 1  # of the auxiliary network
    assert unit_at(Place(phase="optimizer"), plan) is None


@pytest.mark.parametrize("case", [("bptt", "paper"), ("stdl", "lean")])
def test_the_snapshot_is_read_by_pytorchs_own_tool(recordings, case, tmp_path):
    path = tmp_path / "trace.pickle"
    path.write_bytes(as_file(recordings[case]))
    snapshot = pickle.loads(path.read_bytes())
    assert set(snapshot) >= {"segments", "device_traces"}
    (segment,) = snapshot["segments"]
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    assert "total_allocated" in _memory_viz.segsum(snapshot)
    assert "entries" in _memory_viz.trace(snapshot)
    assert "<html>" in _memory_viz.trace_plot(snapshot)


@pytest.mark.parametrize("case", CASES)
def test_the_snapshot_peaks_where_the_step_does(recordings, predictions, case):
    entries = pickle.loads(as_file(recordings[case]))["device_traces"][0]
    alive, most, taken = 0, 0, {}
    for entry in entries:
        if entry["action"] == "alloc":
            assert all(entry["addr"] + entry["size"] <= a or a + s <= entry["addr"] for a, s in taken.items())
            taken[entry["addr"]] = entry["size"]
            alive += entry["size"]
        elif entry["action"] == "free_completed":
            assert taken.pop(entry["addr"]) == entry["size"]
            alive -= entry["size"]
        most = max(most, alive)
    assert most == predictions[case].peak_bytes


def test_gaps_are_used_again():
    space = Space()
    first, second = space.take(100), space.take(50)
    space.take(10)
    space.give_back(second, 50)
    assert first == START
    assert space.take(50) == second
    assert space.end == START + 160
