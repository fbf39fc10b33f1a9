"""The benchmark of `optimize`: what it compares first, and the rows it writes."""

import pytest
from torch import nn

from bench import dropin
from bench.session import Session


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(dropin, "MODELS", ("sew_resnet18",))
    monkeypatch.setattr(dropin, "QUICK_SIZES", (dropin.Size(batch=2, side=32),))


def test_rows(small):
    session = Session("dropin", 2, quick=True, device="cpu")
    dropin.run(session)
    rows = {(row.who, row.unit): row for row in session.rows}
    assert not [row.note for row in session.rows if row.spread is None]
    assert rows["optimize", "x"].target == ">= 1.6"
    share = rows["optimize", "of the bytes"]
    assert share.target == "<= 0.7"
    assert share.reached
    recomputing = rows["optimize, recomputing", "of the bytes"]
    assert recomputing.target == "<= 0.35"
    assert recomputing.reached
    assert rows["optimize, recomputing", "x"].target == ">= 1.6"
    assert rows["optimize", "MB"].spread.p50 < rows["convert_neurons", "MB"].spread.p50
    page = "\n".join(dropin.tables(session.rows))
    assert "### sew_resnet18, training step, batch 2, 32×32, T=4" in page
    assert "(<= 0.7)" in page


def test_a_model_that_differs_is_refused(small, monkeypatch):
    def wrong(model: nn.Module) -> None:
        model.fc.weight.data.mul_(1.001)

    dropin.differs.cache_clear()
    monkeypatch.setitem(dropin.WAYS, "optimize", wrong)
    assert dropin.differs("sew_resnet18", "optimize").startswith("differs: its outputs by")
    dropin.differs.cache_clear()
