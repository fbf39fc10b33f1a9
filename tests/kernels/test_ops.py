"""The torch operators: schema, fake tensors, autograd registration, tracing with dynamic shapes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from stdl_engine.kernels.lif import lif_step, lif_step_

from .compare import Case, on_targets_and_dtypes

SCALARS = (0.3, 1.0, "hard", 0.25, 0.8)
SURROGATE = ("inverse_square", 0.7, 1.3)
OPS = torch.ops.stdl_engine

wants_gradient = pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "gradient"])


def check(op, *arguments) -> None:
    outcome = opcheck(op, arguments)
    assert set(outcome.values()) == {"SUCCESS"}


@wants_gradient
@on_targets_and_dtypes()
def test_opcheck_of_the_differentiable_step(target, dtype, requires_grad):
    case = Case.random((3, 5), dtype, target.device).map(lambda t: t.requires_grad_(requires_grad))
    check(OPS.lif_step.default, case.x, case.m_prev, *SCALARS, False, *SURROGATE, target.backend, True)


@wants_gradient
@on_targets_and_dtypes()
def test_opcheck_of_the_online_step(target, dtype, requires_grad):
    case = Case.random((3, 5), dtype, target.device)
    x = case.x.requires_grad_(requires_grad)
    check(OPS.lif_step_.default, x, case.m_prev, *SCALARS, *SURROGATE, target.backend)


@wants_gradient
@on_targets_and_dtypes()
def test_opcheck_of_the_online_step_over_its_input(target, dtype, requires_grad):
    case = Case.random((3, 5), dtype, target.device)
    x = case.x.requires_grad_(requires_grad) * 1  # no leaf: those may not be written over
    check(OPS.lif_step_over_.default, x, case.m_prev, *SCALARS, *SURROGATE, target.backend)


@pytest.mark.parametrize("has_past", [False, True], ids=["online", "bptt"])
@on_targets_and_dtypes()
def test_opcheck_of_the_backward(target, dtype, has_past):
    case = Case.random((3, 5), dtype, target.device)
    grad_m, m_prev = (case.grad_m, case.m_prev) if has_past else (None, None)
    m = case.m_prev.clone()
    check(
        OPS.lif_backward.default,
        m,
        case.grad_spikes,
        grad_m,
        m_prev,
        dtype,
        *SCALARS,
        False,
        *SURROGATE,
        target.backend,
    )


def test_opcheck_of_the_backward_of_what_wants_a_gradient(target):
    """Tracing asks for a second derivative, which there is none of; all else must hold."""
    case = Case.random((3, 5), torch.float32, target.device).map(torch.Tensor.requires_grad_)
    arguments = (case.m_prev.detach(), case.grad_spikes, case.grad_m, case.m_prev, torch.float32, *SCALARS, False)
    outcome = opcheck(
        OPS.lif_backward.default,
        (*arguments, *SURROGATE, target.backend),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    assert set(outcome.values()) == {"SUCCESS"}


@pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
@pytest.mark.parametrize(
    "arrange",
    [
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
        lambda t: t[:, :0],
    ],
    ids=["channels_last", "permuted", "empty"],
)
def test_opcheck_of_layouts(target, arrange, online):
    case = Case.random((2, 3, 4, 5), torch.float32, target.device).map(arrange)
    case.x.requires_grad_()
    if online:
        check(OPS.lif_step_.default, case.x, case.m_prev, *SCALARS, *SURROGATE, target.backend)
    else:
        check(OPS.lif_step.default, case.x, case.m_prev, *SCALARS, False, *SURROGATE, target.backend, True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
def test_fake_tensors(online, dtype, device):
    """Shapes, strides, dtypes and gradients without any data; a GPU is not needed either."""
    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5, dtype=dtype, device=device).to(memory_format=torch.channels_last)
        x.requires_grad_(device == "cpu")  # the engine of a CUDA build wants a real device to go back
        m = torch.empty_like(x, dtype=torch.float32, requires_grad=False)
        if online:
            spikes = lif_step_(x, m)
        else:
            spikes, m = lif_step(x, m)
        assert (spikes.shape, spikes.stride(), spikes.dtype, spikes.device.type) == (x.shape, x.stride(), dtype, device)
        assert (m.shape, m.stride(), m.dtype) == (x.shape, x.stride(), torch.float32)
        if x.requires_grad:
            spikes.backward(torch.empty_like(spikes))
            assert (x.grad.shape, x.grad.dtype) == (x.shape, dtype)


def test_meta_tensors():
    x = torch.empty(2, 3, device="meta")
    spikes, m = lif_step(x, torch.zeros_like(x))
    assert spikes.shape == m.shape == lif_step_(x, m).shape == (2, 3)
