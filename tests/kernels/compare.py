"""Running one LIF step on a backend and on the reference, and how close the two must be."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from stdl_engine.kernels.lif import lif_step, lif_step_, reference
from stdl_engine.kernels.lif.ops import STATE_DTYPE

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
RESETS = ({"reset": "soft"}, {"reset": "hard", "reset_value": 0.25}, {"reset": "none"})

TOLERANCE = {torch.float64: 2e-15, torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
"""Relative, and absolute for values around 1: a few roundings of the arithmetic, or one of a 16-bit result."""


@dataclass(frozen=True)
class Target:
    """A backend and the device its tensors are on."""

    backend: str
    device: str

    def __str__(self) -> str:
        return "interpreter" if self.backend == "triton" and self.device == "cpu" else self.device

    def takes(self, dtype: torch.dtype) -> bool:
        return self.backend == "cpu" or dtype != torch.float64

    def is_exact(self, surrogate: str, dtype: torch.dtype) -> bool:
        """Whether gradients must equal the reference's to the last bit.

        Sums, products and comparisons are rounded alike everywhere, exp and division are not.
        """
        return surrogate in ("triangle", "rectangle") and not self.cuts_off(dtype)

    def cuts_off(self, dtype: torch.dtype) -> bool:
        """Whether results are cut off to this dtype, not rounded: Triton's interpreter does it with bfloat16."""
        return str(self) == "interpreter" and dtype == torch.bfloat16


TARGETS = [Target("cpu", "cpu")]
if importlib.util.find_spec("triton"):
    # Where there is a GPU the Triton kernels run on it, elsewhere in Triton's interpreter.
    TARGETS.append(Target("triton", "cuda" if torch.cuda.is_available() else "cpu"))


def on_targets_and_dtypes(keep: Callable[[Target, torch.dtype], bool] = Target.takes) -> pytest.MarkDecorator:
    """Run a test with every `target` and `dtype` that go together."""
    pairs = [(target, dtype) for target in TARGETS for dtype in DTYPES if keep(target, dtype)]
    ids = [f"{target}-{str(dtype).removeprefix('torch.')}" for target, dtype in pairs]
    return pytest.mark.parametrize(("target", "dtype"), pairs, ids=ids)


class Result(NamedTuple):
    """What one step gives; `grad_m_prev` is None online."""

    spikes: Tensor
    m: Tensor
    grad_x: Tensor
    grad_m_prev: Tensor | None


class Case(NamedTuple):
    """What one step takes: input, state, and the gradients that come from above."""

    x: Tensor
    m_prev: Tensor
    grad_spikes: Tensor
    grad_m: Tensor

    @classmethod
    def random(cls, shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu", threshold: float = 1.0) -> Case:
        """Membranes on both sides of the threshold, some of them at it exactly."""
        x = (torch.randn(shape) * 0.7 + 0.5).to(dtype)
        m_prev = (torch.randn(shape) * 0.7 + 0.7).to(STATE_DTYPE[dtype])
        m_prev.view(-1)[::7] = threshold
        grads = torch.randn(shape).to(dtype), torch.randn(shape).to(m_prev.dtype)
        return cls(*(t.to(device) for t in (x, m_prev, *grads)))

    def map(self, change) -> Case:
        return Case(*map(change, self))


def run(case: Case, target: Target | None = None, **options) -> Result:
    """One differentiable step, forward and backward; on the reference if no target is given."""
    x, m_prev = case.x.detach().requires_grad_(), case.m_prev.detach().requires_grad_()
    if target is None:
        spikes, m = reference.lif_step(x, m_prev, **options)
    else:
        spikes, m = lif_step(x, m_prev, backend=target.backend, **options)
    grads = torch.autograd.grad([spikes, m], [x, m_prev], [case.grad_spikes, case.grad_m])
    return Result(spikes.detach(), m.detach(), *grads)


def run_online(case: Case, target: Target | None = None, **options) -> Result:
    """One online step, forward and backward; on the reference if no target is given."""
    x, m = case.x.detach().requires_grad_(), case.m_prev.clone()
    if target is None:
        spikes = reference.lif_step_(x, m, **options)
    else:
        spikes = lif_step_(x, m, backend=target.backend, **options)
    (grad_x,) = torch.autograd.grad(spikes, x, case.grad_spikes)
    return Result(spikes.detach(), m, grad_x, None)


def assert_same(found: Result, expected: Result, exact: bool = True) -> None:
    """Spikes and state equal to the last bit, gradients too if `exact`, else near."""
    assert_equal(found.spikes, expected.spikes)  # so no spike may flip
    assert_equal(found.m, expected.m)
    for gradient, right in zip(found[2:], expected[2:], strict=True):
        if right is None:
            assert gradient is None
        else:
            (assert_equal if exact else assert_near)(gradient, right)


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def assert_near(found: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
