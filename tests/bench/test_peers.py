"""Every layer that is compared computes the reference's equation, and whoever does not is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from bench import kernels, protocol
from bench.agreement import agreement, run_exact, run_online
from bench.peers import CONTENDERS, Contender, Layer, inputs, plain, step_by_step
from bench.session import Session
from stdl_engine import ATan, FusedLIF

LAYERS = [contender for contender in CONTENDERS.values() if contender.name != "torch.compile"]


def fused_with(**options) -> Contender:
    """FusedLIF as someone else's layer, with some option of its own."""

    def build(online: bool, T: int) -> Layer:
        lif = FusedLIF(**({"decay": 0.1, "online": online} | options))
        return Layer(lif, step_by_step(lif), lif.reset, lif.detach_state)

    return Contender("someone", build)


def forgetful() -> Contender:
    """The reference with no gradient through time."""

    def build(online: bool, T: int) -> Layer:
        layer = plain(online, T)

        def step(x):
            spikes = layer.step(x)
            layer.detach()
            return spikes

        return dataclasses.replace(layer, sequence=step_by_step(step))

    return Contender("forgetful", build)


WRONG = {
    "decay": fused_with(decay=0.2),
    "threshold": fused_with(threshold=1.01),
    "reset": fused_with(reset="none"),
    "surrogate": fused_with(surrogate=ATan(2.0)),
    "the reset's gradient": fused_with(detach_reset=True),
    "the past's gradient": forgetful(),
}


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("T", [1, 4])
@pytest.mark.parametrize("contender", LAYERS, ids=lambda contender: contender.name)
def test_every_peer_computes_the_reference(contender, T, online):
    if contender.missing:
        pytest.skip(contender.missing)
    found = agreement(contender, online=online, T=T, neurons=999)
    assert found.same, found


@pytest.mark.parametrize("what", WRONG)
def test_a_layer_that_computes_something_else_is_found_out(what):
    found = agreement(WRONG[what], online=False, T=4, neurons=999)
    assert not found.same
    assert max(found.distance, found.error) > 1e-3


def test_the_check_sees_a_gradient_of_one_step_only():
    """An error in the last step's gradient alone, a thousandth of it."""

    class Slip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.tensor([1.0, 1.0, 1.0, 1.001])[:, None]

    def build(online: bool, T: int) -> Layer:
        layer = plain(online, T)
        sequence = layer.sequence
        layer.sequence = lambda x: sequence(Slip.apply(x))
        return layer

    found = agreement(Contender("slip", build), online=False, T=4, neurons=999)
    assert found.flips == 0
    assert not found.same


def test_online_takes_the_past_as_a_constant_and_exact_does_not():
    x, grad = inputs(99, 3)
    spikes, exact = run_exact(plain(False, 3), x, grad)
    same, online = run_online(plain(True, 3), x, grad)
    assert torch.equal(spikes, same)
    assert torch.equal(exact[-1], online[-1])
    assert not torch.allclose(exact[0], online[0])
    assert 0.1 < spikes.mean() < 0.6


@pytest.mark.parametrize("online", [True, False])
def test_who_differs_is_reported_and_not_timed(online):
    session, ran = Session("kernels", 2), []
    wrong = fused_with(decay=0.2)

    def build(online: bool, T: int) -> Layer:
        layer = wrong.build(online, T)
        step = layer.step
        layer.step = lambda x: (ran.append(x.shape), step(x))[1]
        return layer

    contenders = {"FusedLIF": CONTENDERS["FusedLIF"], "wrong": dataclasses.replace(wrong, name="wrong", build=build)}
    kernels.compare(session, kernels.Setting(online=online, T=2), (64,), contenders)
    rows = [row for row in session.rows if row.who == "wrong"]
    assert [row.spread for row in rows] == [None]
    assert rows[0].note.startswith("differs: ")
    assert "from the threshold" in rows[0].note
    assert all(row.against != "wrong" for row in session.rows)
    assert len(ran) == (2 if online else 0)  # the check's own steps, and none after it
    assert {row.who for row in session.rows if row.unit == "M neurons/s" and row.spread} == {"FusedLIF"}


def test_who_fails_is_reported():
    def build(online: bool, T: int) -> Layer:
        raise TypeError("an argument of another version")

    session = Session("kernels", 2)
    layer = kernels.admit(session, Contender("broken", build), kernels.Setting(online=True, T=1), 64)
    assert layer is None
    assert [row.note for row in session.rows] == ["fails: an argument of another version"]


def test_who_fails_without_a_word_is_reported_too():
    class Other(Exception):
        """Of a library that has its own."""

    def build(online: bool, T: int) -> Layer:
        raise Other

    session = Session("training", 2)
    contenders = {"FusedLIF": CONTENDERS["FusedLIF"], "broken": Contender("broken", build)}
    protocol.compare(session, 16, steps=3, contenders=contenders)
    assert [row.note for row in session.rows if row.who == "broken"] == ["fails: Other"]


def test_we_are_refused_like_anyone_else():
    session = Session("kernels", 2)
    ours = dataclasses.replace(fused_with(threshold=1.01), name="FusedLIF", ours=True)
    setting = kernels.Setting(online=False, T=2)
    kernels.compare(session, setting, (64,), {"FusedLIF": ours, "reference": CONTENDERS["reference"]})
    assert next(row for row in session.rows if row.who == "FusedLIF").note.startswith("differs: ")
    assert not any(row.unit == "x" for row in session.rows)


def test_what_is_not_installed_is_reported():
    session = Session("kernels", 2)
    absent = Contender("absent", lambda online, T: pytest.fail("built"), package="no_such_package_here")
    contenders = {"FusedLIF": CONTENDERS["FusedLIF"], "absent": absent}
    kernels.compare(session, kernels.Setting(online=True, T=1), (64,), contenders)
    (row,) = [row for row in session.rows if row.who == "absent"]
    assert row.note == "no_such_package_here is not installed: pip install 'stdl-engine[bench]'"


def test_rates_shares_and_ratios_are_of_the_same_rounds():
    session = Session("kernels", 3)
    contenders = {name: CONTENDERS[name] for name in ("FusedLIF", "reference")}
    kernels.compare(session, kernels.Setting(online=False, T=4), (256,), contenders)
    assert len(session.rows) == 2 * (2 + 2 + 1)
    for row in session.rows:
        assert (row.shape, row.dtype, row.rounds) == ("4×2^8", "float32", 3)
        assert 0 < row.spread.p20 <= row.spread.p50 <= row.spread.p80
    assert {row.against for row in session.rows if row.unit == "x"} == {"reference"}


def test_a_dry_run_goes_through_all_dtypes(monkeypatch):
    session = Session("kernels", 2, dry=True)
    monkeypatch.setattr(kernels, "DRY_SIZES", {2: (2**8,)})
    contenders = {name: CONTENDERS[name] for name in ("FusedLIF", "reference")}
    compare = kernels.compare
    monkeypatch.setattr(kernels, "compare", lambda *given: compare(*given, contenders))
    kernels.run(session)
    assert {row.dtype for row in session.rows} == {"float32", "float16", "bfloat16"}
    assert {row.shape for row in session.rows} == {"2×2^8"}
    assert all(row.spread is not None for row in session.rows)


@pytest.mark.usefixtures("pretended_gpu")
def test_a_size_that_does_not_fit_a_gpu_is_a_row(monkeypatch):
    def on_cpu(neurons, T, dtype, device):
        if neurons > 64:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return inputs(neurons, T, dtype)

    inputs, copy = kernels.inputs, kernels.copy
    monkeypatch.setattr(kernels, "inputs", on_cpu)
    monkeypatch.setattr(kernels, "copy", lambda moved, device: copy(moved))
    monkeypatch.setattr("bench.agreement.inputs", on_cpu)
    session = Session("kernels", 2, device="cuda")
    setting = kernels.Setting(online=True, T=1, dtype=torch.float16)
    kernels.compare(session, setting, (64, 128), {"FusedLIF": CONTENDERS["FusedLIF"]})
    found = {(row.shape, row.unit, row.note) for row in session.rows}
    assert found == {
        ("1×2^6", "M neurons/s", ""),
        ("1×2^6", "of copy_", ""),
        ("1×2^7", "M neurons/s", "out of memory"),
    }


def test_the_protocol_refuses_what_differs_and_times_the_rest():
    session = Session("training", 2)
    contenders = {name: CONTENDERS[name] for name in ("FusedLIF", "reference", "SpikingJelly LIFNode")}
    contenders["wrong"] = dataclasses.replace(fused_with(decay=0.2), name="wrong")
    protocol.compare(session, 16, steps=10, contenders=contenders)
    assert [row.who for row in session.rows if row.note.startswith("differs: ")] == ["wrong"]
    assert [row.who for row in session.rows if row.unit == "ms" and row.spread] == [*contenders][:3]
    assert {row.against for row in session.rows if row.unit == "x"} == {"reference", "SpikingJelly LIFNode"}


def test_the_protocols_neurons_fire_and_stay_below_twice_the_threshold():
    problem = protocol.Problem(256, 50)
    assert problem.difference(plain(False, 50)) == ""
    assert 0.002 < problem.expected[0].mean() < 0.2
    assert 1 < problem.largest < 2
