"""Rounding: the error against float64 is at most twice that of the plain version in the same dtype."""

import pytest
import torch

from stdl_engine.kernels.surrogate import SURROGATES

from .compare import RESETS, Case, on_targets_and_dtypes, run

OPTIONS = {"decay": 0.3, "threshold": 0.6, "scale": 0.8}
ROUNDING = 4 * torch.finfo(torch.float32).eps
"""What float32 arithmetic may move a membrane of about 1 by; closer to the threshold a spike may flip."""


@on_targets_and_dtypes(lambda target, dtype: dtype != torch.float64 and not target.cuts_off(dtype))
@pytest.mark.parametrize("reset", RESETS, ids=lambda r: r["reset"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_error_against_float64(target, surrogate, reset, dtype):
    options = OPTIONS | reset | {"surrogate": SURROGATES[surrogate]()}
    case = Case.random((2003,), dtype, target.device)
    exact = run(case.map(torch.Tensor.double), **options)
    plain, found = run(case, **options), run(case, target, **options)

    at_threshold = (exact.m - options["threshold"]).abs() < ROUNDING
    at_threshold |= (case.m_prev - options["threshold"]).abs() < ROUNDING
    flips = found.spikes.double() != exact.spikes
    assert not (flips & ~at_threshold).any()
    assert flips.sum() <= 2  # of 2003
    for mine, theirs, right in zip(found, plain, exact, strict=True):
        error, allowed = (((t.double() - right)[~at_threshold]).abs().max() for t in (mine, theirs))
        assert error <= 2 * allowed
