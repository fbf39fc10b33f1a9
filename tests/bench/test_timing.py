"""Percentiles, ratios within rounds, and the order in which cases run."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from bench.session import Session
from bench.timing import Case, interleave, ratios, spread


def test_spread_of_known_samples():
    found = spread([5.0, 1.0, 2.0, 4.0, 3.0, 6.0])
    assert (found.p20, found.p50, found.p80) == (2.0, 3.5, 5.0)


def test_spread_of_a_single_sample():
    found = spread([7.0])
    assert (found.p20, found.p50, found.p80) == (7.0, 7.0, 7.0)


def test_ratios_are_taken_within_a_round():
    # A slow machine in rounds 2 and 3 slows both: every round says 2, while the medians' ratio is 4.
    theirs, ours = [2.0, 20.0, 40.0], [1.0, 10.0, 20.0]
    assert ratios(theirs, ours) == [2.0, 2.0, 2.0]
    # Luck in one round does not carry over to another.
    assert spread(ratios([4.0, 4.0, 4.0], [1.0, 4.0, 2.0])).p50 == 2.0


def test_ratios_of_unequal_rounds_are_an_error():
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_every_round_runs_each_case_once_in_changing_order():
    ran: list[str] = []
    cases = {name: Case(lambda name=name: ran.append(name)) for name in "abcd"}
    times = interleave(cases, 8, warmup=1)
    rounds = [tuple(ran[i : i + 4]) for i in range(0, len(ran), 4)]
    assert len(rounds) == 9
    assert all(sorted(one) == list("abcd") for one in rounds)
    assert len(set(rounds)) > 1
    assert {name: len(samples) for name, samples in times.items()} == dict.fromkeys("abcd", 8)


def test_preparation_is_not_timed_and_a_sample_is_the_mean_of_its_calls():
    calls: list[str] = []
    slow = Case(lambda: calls.append("run"), prepare=lambda: (calls.append("prepare"), time.sleep(0.02)))
    (seconds,) = interleave({"slow": slow}, 1, calls=3, warmup=0)["slow"]
    assert calls == ["prepare", "run", "run", "run"]
    assert seconds < 0.02
    steady = Case(lambda: time.sleep(0.01))
    (seconds,) = interleave({"steady": steady}, 1, calls=3, warmup=0)["steady"]
    assert 0.01 <= seconds < 0.03  # three of them, divided by three


def test_collection_is_off_while_timing_and_on_again_after_an_error():
    found = []
    interleave({"a": Case(lambda: found.append(gc.isenabled()))}, 2)
    assert not any(found)
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        interleave({"a": Case(lambda: 1 / 0)}, 2)
    assert gc.isenabled()


def test_a_session_records_medians_targets_and_refusals():
    session = Session("kernels", 3)
    session.record("a step", "x", [3.0, 5.0, 4.0], at_least=4, who="ours", against="theirs", shape="8")
    session.record("overhead", "%", 3.5, at_most=3)
    session.refuse("a step", "x", "differs: by 1", who="other")
    first, second, third = session.rows
    assert (first.spread.p50, first.rounds, first.target, first.reached) == (4.0, 3, ">= 4", True)
    assert (second.target, second.reached, second.rounds) == ("<= 3", False, 1)
    assert (third.spread, third.note) == (None, "differs: by 1")


def test_sizes_of_a_run():
    for name, mode in (("full", {}), ("quick", {"quick": True}), ("dry", {"dry": True})):
        assert Session("kernels", 2, **mode).sizes("full", "quick", "dry") == name


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), "out of memory"),
        (
            RuntimeError("CUDA error: an illegal access\nCompile with more"),
            "fails: RuntimeError: CUDA error: an",
        ),
        (AssertionError(), "fails: AssertionError"),
    ],
)
def test_what_fails_on_a_gpu_is_a_row(error, note):
    session = Session("kernels", 2, device="cuda")
    with session.attempt("forward", "M neurons/s", who="FusedLIF", shape="1×2^26"):
        raise error
    (row,) = session.rows
    assert (row.what, row.who, row.shape, row.spread) == ("forward", "FusedLIF", "1×2^26", None)
    assert row.note.startswith(note)
    session = Session("kernels", 2, device="cpu")
    with pytest.raises(type(error)), session.attempt("forward", "M neurons/s"):
        raise error
    assert session.rows == []
