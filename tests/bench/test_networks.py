"""SpikingJelly's network is ours, its memory optimiser is as it comes, and training steps are compared."""

from __future__ import annotations

import functools

import pytest
import torch
from spikingjelly.activation_based import functional
from spikingjelly.activation_based.memopt import optimize_memory

from bench import jelly, memopt, memory, profile, training
from bench.session import Session
from stdl_engine import FusedLIF
from stdl_engine.models import build_model
from stdl_engine.rules import RULES

WIDTH, T = 0.125, 2


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 3, 16, 16), torch.randint(10, (3,))


@pytest.mark.parametrize("mode", ["s", "m"])
def test_same_weights_same_logits_and_gradients(mode, batch):
    assert (
        jelly.difference(build_model("resnet18", width=WIDTH), jelly.resnet18(mode, width=WIDTH), *batch, T, mode) == ""
    )


@pytest.mark.parametrize("mode", ["s", "m"])
def test_another_network_is_found_out(mode, batch):
    ours = build_model("resnet18", width=WIDTH, decay=0.5)
    assert jelly.difference(ours, jelly.resnet18(mode, width=WIDTH), *batch, T, mode).startswith("differs: ")


def test_online_gradients_are_the_same_and_other_than_exact_ones(batch):
    ours, theirs = build_model("resnet18", width=WIDTH), jelly.resnet18("s", online=True, width=WIDTH)
    assert jelly.difference(ours, theirs, *batch, T, "s", online=True) == ""
    found = jelly.difference(ours.float(), theirs.float(), *batch, T, "s")
    assert found.startswith("differs: the gradient of ")


def test_the_networks_that_are_compared_fire_to_the_last_layer(batch):
    model = build_model("resnet18", width=WIDTH)
    rates = {}
    for name, module in model.named_modules():
        if isinstance(module, FusedLIF):
            module.register_forward_hook(lambda _, x, spikes, name=name: rates.__setitem__(name, spikes.mean().item()))
    jelly.settle(model, batch[0], T)
    for _ in range(T):
        model.eval()(batch[0])
    assert len(rates) == 17
    assert all(rate > 0 for rate in rates.values()), rates


def test_a_network_whose_training_would_corrupt_memory_is_refused():
    with pytest.raises(ValueError, match=r"width 0\.1 gives SpikingJelly's network 6 channels: .* Take width 0\.125"):
        jelly.resnet18("m", width=0.1)


@pytest.mark.parametrize("share", memopt.SHARES)
def test_the_optimised_network_is_what_the_optimiser_makes(batch, share):
    x, y = torch.randn(3, 3, 32, 32), batch[1]
    torch.manual_seed(0)
    by_hand = memopt.apply(jelly.resnet18("m", width=WIDTH), memopt.level_1(share, WIDTH))
    torch.manual_seed(0)
    by_itself = jelly.resnet18("m", width=WIDTH)
    targets = (jelly.ConvUnit, jelly.ResidualBlock)
    optimize_memory(by_itself, targets, lambda model: jelly.logits(model, x, T, "m"), level=1, checkpoint_budget=share)
    functional.reset_net(by_itself)
    peaks = [jelly.peak_bytes(jelly.Trainer(model, memory.SGD, "m"), x, y, T) for model in (by_hand, by_itself)]
    assert peaks[0] == peaks[1]
    plain = jelly.Trainer(jelly.resnet18("m", width=WIDTH), memory.SGD, "m")
    assert peaks[0] < jelly.peak_bytes(plain, x, y, T)


def test_higher_levels_take_no_more_memory_and_give_the_same_gradients():
    x, y = torch.randn(16, 3, 16, 16), torch.randint(10, (16,))

    @functools.cache
    def peak(wrapped):
        model = memopt.apply(jelly.resnet18("m", width=WIDTH), wrapped)
        return jelly.peak_bytes(jelly.Trainer(model, memory.SGD, "m"), x, y, T)

    first, second, fourth = memopt.level_1(), memopt.searched(2, peak), memopt.searched(4, peak)
    assert peak(second) < peak(first)
    assert peak(fourth) <= peak(second)
    assert sum(map(len, fourth)) < sum(map(len, second))
    gradients = []
    for wrapped in ((memopt.NOTHING,) * memopt.UNITS, second):
        torch.manual_seed(0)
        model = memopt.apply(jelly.resnet18("m", width=WIDTH).double(), wrapped)
        steps = jelly.logits(model, x.double(), T, "m")
        gradients.append(torch.autograd.grad(jelly.loss_of(steps, y), list(model.parameters())))
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain, rtol=1e-9, atol=1e-12)


def test_training_steps_are_compared_each_in_its_layout(monkeypatch):
    session = Session("training", 2, quick=True)
    trainees = {name: training.TRAINEES[name] for name in ("STDL, lean", training.PEER)}
    size = training.Size(width=WIDTH, batch=2)
    monkeypatch.setattr(training, "differs", lambda *_: "")
    monkeypatch.setattr(training, "T", 1)
    training.compare(session, size, trainees)
    rates = {row.who: row for row in session.rows if row.unit == "samples/s"}
    assert set(rates) == set(trainees)
    assert all(row.note in training.LAYOUTS for row in rates.values())
    assert all(row.spread.p50 > 0 for row in session.rows if row.unit == "MB")
    (ratio,) = [row for row in session.rows if row.unit == "x"]
    assert (ratio.who, ratio.against, ratio.target) == ("STDL, lean", training.PEER, ">= 1")
    profiled = [row for row in session.rows if row.what.endswith("time by operator")]
    assert bool(profiled) is not ratio.reached
    assert bool(session.files) is not ratio.reached


def test_recomputing_is_timed_and_keeps_to_the_memory_of_the_peer(monkeypatch):
    session = Session("training", 2)
    peer = "SpikingJelly memopt, level 1, speed"
    names = ("BPTT, lean", "BPTT, recomputing", "BPTT, in the memory of memopt, level 1, speed", peer)
    monkeypatch.setattr(training, "differs", lambda *_: "")
    monkeypatch.setattr(training, "T", 2)
    monkeypatch.delitem(training.LAYOUTS, "contiguous")
    training.compare(session, training.Size(width=WIDTH, batch=4), {name: training.TRAINEES[name] for name in names})
    peaks = {row.who: row.spread.p50 for row in session.rows if row.unit == "MB"}
    assert peaks["BPTT, recomputing"] < peaks["BPTT, lean"]
    assert peaks[names[2]] <= peaks[peer]
    (slower,) = [row for row in session.rows if row.unit == "x slower"]
    assert (slower.who, slower.against, slower.target) == ("BPTT, recomputing", "BPTT, lean", "<= 1.35")
    assert "Time of a step that recomputes:" in training.tables(session.rows)


@pytest.mark.usefixtures("pretended_gpu")
def test_who_does_not_fit_a_gpu_is_a_row_and_the_others_are_timed(monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    batch_of = training.batch_of
    monkeypatch.setattr(training, "batch_of", lambda size, device: batch_of(size))
    monkeypatch.setattr(training, "T", 1)
    trainees = {
        "SLTT, lean": training.Trainee(build=too_large),
        "SLTT, recomputing": training.TRAINEES["SLTT, recomputing"],
        "ELL, lean": training.TRAINEES["ELL, lean"],
    }
    session = Session("training", 2, device="cuda")
    training.compare(session, training.Size(width=WIDTH, batch=2), trainees)
    assert [(row.who, row.note) for row in session.rows if row.spread is None] == [("SLTT, lean", "out of memory")]
    measured = [row for row in session.rows if row.spread is not None]
    assert [row.who for row in measured if row.unit == "samples/s"] == list(trainees)[1:]
    assert {row.spread.p50 for row in measured if row.unit == "MB allocated"} == {4.0}
    assert "MB allocated by CUDA in a step" in "".join(training.tables(measured))
    assert training.plot(measured).startswith(b"\x89PNG")


def test_a_size_that_fails_on_a_gpu_stops_no_other(monkeypatch):
    def compare(session, size):
        if size.batch == 8:
            raise RuntimeError("CUDA error: unspecified launch failure")
        session.record("a step", "x", 1.0, shape=str(size))

    monkeypatch.setattr(training, "compare", compare)
    session = Session("training", 2, device="cuda")
    training.run(session)
    notes = {row.shape: row.note for row in session.rows}
    assert notes == {
        "width 0.25, batch 64, T=4": "",
        "width 1, batch 8, T=4": "fails: RuntimeError: CUDA error: unspecified launch failure",
        "width 1, batch 128, T=4": "",
    }


def test_a_profile_without_times_of_the_gpu_is_a_note(batch):
    """Without a GPU, or without leave to trace it, the profiler counts no time on it."""
    session = Session("training", 2, device="cuda")
    stepper = training.TRAINEES["SLTT, lean"].build(WIDTH, batch[0], torch.contiguous_format)
    profile.keep(session, "STDL, lean", stepper, *batch, 1, "width 1, T=4")
    assert session.rows == []
    assert "PyTorch's profiler needs CUPTI" in session.notes[-1]
    assert list(session.files) == ["training_profile_width1_T4.txt"]


def test_every_rule_is_trained():
    built = {name.partition(",")[0].lower() for name in training.TRAINEES}
    assert {"bptt", "sltt", "decolle", "ell", "stdl", "four even parts"} <= built
    assert set(RULES) == {"bptt", "sltt", "decolle", "ell", "stdl", "even"}  # a new one belongs there too


def test_a_network_that_differs_is_not_trained(monkeypatch):
    session = Session("training", 2, quick=True)
    peer = training.Trainee(build=lambda *_: pytest.fail("built"), mode="m")
    monkeypatch.setattr(training, "differs", lambda *_: "differs: logits by 1.0e+00")
    training.compare(session, training.Size(width=WIDTH, batch=2), {training.PEER: peer})
    (refused,) = session.rows
    assert (refused.who, refused.spread, refused.note) == (training.PEER, None, "differs: logits by 1.0e+00")
