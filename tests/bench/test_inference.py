"""The benchmark of prediction: what it compares first, and the rows it writes."""

import pytest
import torch

from bench import inference
from bench.session import Session
from bench.training import Size


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(inference, "QUICK_SIZES", (Size(width=0.125, batch=2),))


def test_rows(narrow):
    session = Session("inference", 2, quick=True, device="cpu")
    inference.run(session)
    assert not [row.note for row in session.rows if row.spread is None]
    speeds = [row.who for row in session.rows if row.unit == "images/s"]
    assert speeds == ["predict", "predict, together", "SpikingJelly, multi-step", "SpikingJelly, step by step"]
    pairs = [(row.who, row.against) for row in session.rows if row.unit == "x"]
    assert pairs == [(ours, theirs) for ours in speeds[:2] for theirs in speeds[2:]]
    page = "\n".join(inference.tables(session.rows))
    assert "### ResNet-18, width 0.125, batch 2, T=4" in page
    assert "/ SpikingJelly, multi-step" in page


def test_the_target_is_of_the_first_size(narrow, monkeypatch):
    monkeypatch.setattr(inference, "SIZES", inference.QUICK_SIZES)
    session = Session("inference", 2, quick=True, device="cpu")
    inference.run(session)
    assert {row.target for row in session.rows if row.unit == "x"} == {">= 2"}


def test_a_network_that_differs_is_not_timed(narrow, monkeypatch):
    evaluate = inference.evaluate
    monkeypatch.setattr(inference, "evaluate", lambda *arguments: evaluate(*arguments) * 1.001)
    inference.differs.cache_clear()
    session = Session("inference", 2, quick=True, device="cpu")
    inference.run(session)
    inference.differs.cache_clear()
    refused = [row for row in session.rows if row.spread is None]
    assert len(refused) == 2
    assert all(row.note.startswith("differs: logits by") for row in refused)
    assert not [row for row in session.rows if row.unit == "x"]


def test_the_network_fires_to_the_end():
    x = torch.randn(4, 3, 16, 16)
    logits = inference.build(inference.PROFILED, 0.125, x, torch.contiguous_format).predict(x, 4)
    assert logits.std(0).min() > 0
