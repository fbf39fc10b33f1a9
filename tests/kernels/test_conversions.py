"""16-bit numbers in and out of float32 arithmetic: every value, every tie, both ends of the range."""

import pytest
import torch

from stdl_engine.kernels.lif import lif_step

from .compare import assert_equal, on_targets_and_dtypes

# Not bfloat16 in Triton's interpreter, which cuts it off and misreads its subnormal numbers; GPUs do neither.
halves = on_targets_and_dtypes(
    lambda target, dtype: dtype in (torch.bfloat16, torch.float16) and not target.cuts_off(dtype)
)


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 of them: subnormal numbers, infinities and NaN as well."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


@halves
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, in the interpreter
def test_input_is_widened_exactly(target, dtype):
    x = every_value(dtype).to(target.device)
    _, m = lif_step(x, torch.zeros_like(x, dtype=torch.float32), decay=0.0, backend=target.backend)
    assert_equal(m, x.float())


@halves
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # numpy's, in the interpreter
def test_gradient_is_rounded_to_nearest_even(target, dtype):
    """The membrane's gradient passes through to the input's, and only its dtype changes."""
    values = every_value(dtype).float()
    finite = values[values.isfinite()].sort().values
    ties = (finite[1:] + finite[:-1]) / 2  # exact: float32 has bits to spare
    around = [ties, torch.nextafter(ties, ties + 1), torch.nextafter(ties, ties - 1)]
    beyond = torch.tensor([65519.0, 65520.0, 3.4e38, -3.4e38, 1e-45, float("inf"), float("-inf"), float("nan")])
    upstream = torch.cat([values, *around, beyond]).to(target.device)
    x = torch.zeros_like(upstream, dtype=dtype).requires_grad_()
    _, m = lif_step(x, torch.zeros_like(upstream), backend=target.backend)
    (found,) = torch.autograd.grad(m, x, upstream)
    assert_equal(found, upstream.to(dtype))
