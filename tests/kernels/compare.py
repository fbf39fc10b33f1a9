"""The targets that kernels are tested on, and how close their results must be."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from stdl_engine.kernels.surrogate import Rectangle, Surrogate, Triangle

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

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

    def is_exact(self, surrogate: Surrogate, dtype: torch.dtype) -> bool:
        """Whether gradients must equal the reference's to the last bit.

        Sums, products and comparisons are rounded alike everywhere, exp and division are not.
        """
        return isinstance(surrogate, Triangle | Rectangle) and not self.cuts_off(dtype)

    def cuts_off(self, dtype: torch.dtype) -> bool:
        """Whether results are cut off to this dtype, not rounded: Triton's interpreter does it with bfloat16."""
        return str(self) == "interpreter" and dtype == torch.bfloat16


CPU = Target("cpu", "cpu")
TARGETS = [CPU]
if importlib.util.find_spec("triton"):
    # Where there is a GPU the Triton kernels run on it, elsewhere in Triton's interpreter.
    TARGETS.append(Target("triton", "cuda" if torch.cuda.is_available() else "cpu"))


def on_targets_and_dtypes(keep: Callable[[Target, torch.dtype], bool] = Target.takes) -> pytest.MarkDecorator:
    """Run a test with every `target` and `dtype` that go together."""
    pairs = [(target, dtype) for target in TARGETS for dtype in DTYPES if keep(target, dtype)]
    ids = [f"{target}-{name_of(dtype)}" for target, dtype in pairs]
    return pytest.mark.parametrize(("target", "dtype"), pairs, ids=ids)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def assert_near(found: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
