"""Every rule on every backend, a GPU's included: fused kernels and lean memory train exactly as the plain form does."""

from __future__ import annotations

import pytest
import torch

from stdl_engine.rules import RULES

from ..kernels.compare import TARGETS
from .nets import assert_same, assert_same_results, batches, make, numbers, small, train


@pytest.fixture(autouse=True)
def _same_algorithms():
    """cuDNN's convolutions add up in the same order every time, in full float32."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize("recompute", ["none", "all"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_fused_and_lean_is_plain(rule, target, recompute):
    given = [(x.to(target.device), y.to(target.device)) for x, y in batches(2)]
    fused = "triton" if str(target) == "interpreter" else "auto"
    found = []
    for options, backend in (
        ({"memory": "lean", "recompute": recompute}, fused),
        ({"memory": "paper"}, "reference"),
    ):
        made = make(rule, small(backend=backend).to(target.device), given[0][0], **options)
        results = train(made, given)
        found.append((numbers(made), results, made.predict(given[0][0], 2)))
    (lean, results, predicted), (plain, plain_results, plain_predicted) = found
    assert {value.device.type for value in lean.values()} == {target.device}
    assert_same(lean, plain)
    assert_same_results(results, plain_results)
    assert torch.equal(predicted, plain_predicted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("rule", RULES)
def test_low_precision(rule, precision):
    """Autocast, and in float16 the gradient scaler; tests/rules/test_precision.py has them on the CPU."""
    given = [(x.cuda(), y.cuda()) for x, y in batches(2)]
    made = make(rule, small().cuda(), given[0][0], precision=precision)
    before = numbers(made)
    results = train(made, given)
    after = numbers(made)
    assert results[-1].logits.isfinite().all()
    assert all(value.isfinite().all() for value in after.values())
    assert not torch.equal(before["model.0.conv.weight"], after["model.0.conv.weight"])
