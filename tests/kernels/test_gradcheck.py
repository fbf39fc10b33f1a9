"""The smooth part of the step, membrane to membrane, against finite differences."""

import pytest
import torch
from torch.autograd import gradcheck

from stdl_engine.kernels.lif import lif_step


@pytest.mark.parametrize("reset", ["soft", "hard", "none"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_membrane_gradient(backend, reset):
    """With the reset detached the membrane is linear in its past, on each side of the threshold."""
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    away = torch.rand(3, 5, dtype=torch.float64) + 0.1
    m_prev = (1.0 + away * torch.randn(3, 5).sign()).requires_grad_()
    assert (m_prev >= 1).any()
    assert (m_prev < 1).any()

    def membrane(x, m_prev):
        options = {"reset": reset, "reset_value": 0.3, "detach_reset": True, "backend": backend}
        return lif_step(x, m_prev, decay=0.7, scale=1.3, **options)[1]

    assert gradcheck(membrane, (x, m_prev))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_membrane_gradient_over_steps(backend):
    x = torch.rand(4, 6, dtype=torch.float64) * 0.2  # never reaches the threshold: no kink
    m_prev = torch.rand(6, dtype=torch.float64) * 0.2

    def final(x, m):
        for x_t in x:
            _, m = lif_step(x_t, m, decay=0.7, detach_reset=True, backend=backend)
        return m

    assert gradcheck(final, (x.requires_grad_(), m_prev.requires_grad_()))
