"""SEW-ResNet-18 of SpikingJelly: who takes part, what is recorded, and what is said of those that fail."""

from __future__ import annotations

import time

import pytest
import torch

from bench import yardstick
from bench.session import OUT_OF_MEMORY, Session
from bench.yardstick import CONTENDERS, PEERS, Size

TINY = Size(batch=2, side=64, steps=1, rounds=1)


@pytest.fixture
def answers(monkeypatch) -> dict[tuple[str, int], dict]:
    """What the process of someone says at a batch size."""
    found: dict[tuple[str, int], dict] = {}

    def in_a_process(name, size, device):
        return found.get((name, size.batch), {"seconds": 2.0, "layout": "contiguous", "peak": 3 * 2**30})

    monkeypatch.setattr(yardstick, "in_a_process", in_a_process)
    return found


def test_the_large_batch_is_enough_where_all_fit(answers):
    answers["STDL, lean", 112] = {"seconds": 1.0, "layout": "channels_last", "peak": 2**30}
    answers["SpikingJelly, cuda", 112] = {"refused": "fails: ImportError: not built"}
    session = Session("yardstick", 2, device="cuda")
    yardstick.run(session)
    assert {row.shape for row in session.rows} == {"224×224, batch 112, T=4"}
    assert {row.dtype for row in session.rows} == {"bfloat16"}
    mine = [row for row in session.rows if row.who == "STDL, lean"]
    assert [(row.unit, row.against, row.spread.p50, row.rounds) for row in mine] == [
        ("images/s", "", 112.0, 3),
        ("GiB", "", 1.0, 1),
        ("x", "SpikingJelly, torch", 2.0, 3),
        ("x", "SpikingJelly, triton", 2.0, 3),
    ]
    assert [row.note for row in session.rows if row.spread is None] == ["fails: ImportError: not built"]
    shown = "\n".join(yardstick.tables([row for row in session.rows if row.spread is not None]))
    assert "| STDL, lean | 112, channels_last | 1 |" in shown


def test_a_smaller_batch_where_one_does_not_fit(answers):
    answers["SpikingJelly, torch", 112] = {"refused": OUT_OF_MEMORY}
    session = Session("yardstick", 2, quick=True, device="cuda")
    yardstick.run(session)
    refused = [row for row in session.rows if row.spread is None]
    assert [(row.who, row.shape, row.note) for row in refused] == [
        ("SpikingJelly, torch", "224×224, batch 112, T=4", "out of memory")
    ]
    smaller = {row.who for row in session.rows if "batch 32" in row.shape}
    assert smaller == set(CONTENDERS)


def test_hours_on_a_cpu_are_refused(answers):
    with pytest.raises(ValueError, match="run it on a GPU, or go through it with --dry-run"):
        yardstick.run(Session("yardstick", 2, device="cpu"))
    session = Session("yardstick", 2, dry=True, device="cpu")
    yardstick.run(session)
    assert {row.shape for row in session.rows} == {"32×32, batch 2, T=4"}


def test_without_spikingjelly(monkeypatch):
    monkeypatch.setattr(yardstick, "missing", lambda package: f"{package} is not installed")
    session = Session("yardstick", 2, device="cuda")
    yardstick.run(session)
    assert [(row.spread, row.note) for row in session.rows] == [(None, "spikingjelly is not installed")]


def test_the_implementation_is_asked_for_by_name(monkeypatch):
    seen = []

    def run(command, **options):
        seen.append(options["env"].get(yardstick.IMPLEMENTATION))
        return yardstick.subprocess.CompletedProcess(command, -11, "", "Fatal Python error\n")

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.delenv(yardstick.IMPLEMENTATION, raising=False)
    for name in (*PEERS, "BPTT, lean"):
        found = yardstick.in_a_process(name, TINY, "cuda")
        assert found == {"refused": "fails: the process ended with -11: Fatal Python error"}
    assert seen == ["torch", "triton", "cuda", None]


@pytest.mark.parametrize("name", ["SpikingJelly with our neurons", "BPTT, lean"])
def test_everyone_trains_all_weights_in_bfloat16(name):
    stepper, x, y = yardstick.made(name, TINY, "cpu", "channels_last")
    assert x.shape == (4, 2, 3, 64, 64)
    assert x[0].is_contiguous(memory_format=torch.channels_last)
    before = {name: parameter.detach().clone() for name, parameter in stepper.model.named_parameters()}
    seen = set()
    convolution = next(module for module in stepper.model.modules() if isinstance(module, torch.nn.Conv2d))
    convolution.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    stepper.step(x, y, 4)
    assert seen == {torch.bfloat16}
    assert all(parameter.dtype == torch.float32 for parameter in stepper.model.parameters())
    assert [name for name, parameter in stepper.model.named_parameters() if torch.equal(before[name], parameter)] == []


@pytest.mark.usefixtures("pretended_gpu")
def test_a_process_on_a_gpu_takes_the_faster_layout_and_the_allocators_peak(monkeypatch):
    class Stepper:
        def __init__(self, layout):
            self.layout = layout

        def step(self, x, y, T):
            time.sleep(0.02 if self.layout == "contiguous" else 0.005)

    monkeypatch.setattr(yardstick, "made", lambda name, size, device, layout: (Stepper(layout), None, None))
    found = yardstick.measured("BPTT, lean", TINY, "cuda")
    assert found["layout"] == "channels_last"
    assert found["seconds"] < 0.02
    assert found["peak"] == 9_000_000
