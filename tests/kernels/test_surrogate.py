"""Surrogate gradients: SpikingJelly's definitions, the same in every backend."""

import math

import numba
import numpy as np
import pytest
import torch
from spikingjelly.activation_based import surrogate as spikingjelly

from stdl_engine.kernels import cpu_math
from stdl_engine.kernels.lif import lif_step_
from stdl_engine.kernels.surrogate import FORMS, SURROGATES, Surrogate, Triangle, as_surrogate, gradient_for

from .compare import TOLERANCE, assert_near

SPIKINGJELLY = {
    "triangle": lambda gamma: spikingjelly.PiecewiseQuadratic(alpha=1 / gamma),
    "rectangle": spikingjelly.Rect,
    "sigmoid": spikingjelly.Sigmoid,
    "atan": spikingjelly.ATan,
    "piecewise_exp": spikingjelly.PiecewiseExp,
    "softsign": spikingjelly.SoftSign,
    "superspike": spikingjelly.SuperSpike,
    "erf": spikingjelly.Erf,
}
PARAMETERS = [0.5, 1.0, 2.0, 3.7]

surrogates = pytest.mark.parametrize("name", SURROGATES)


def distances(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """From the threshold, far and near, at random so that none is at an edge."""
    return torch.cat([torch.randn(500) * scale for scale in (0.01, 0.3, 1.0, 5.0)] + [torch.zeros(1)]).to(dtype)


@surrogates
@pytest.mark.parametrize("parameter", PARAMETERS)
def test_value_is_spikingjellys(name, parameter):
    d = distances().requires_grad_()
    upstream = torch.randn_like(d)
    (theirs,) = torch.autograd.grad(SPIKINGJELLY[name](parameter)(d), d, upstream)
    ours = upstream * SURROGATES[name](parameter)(d.detach())
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


@surrogates
def test_default_is_spikingjellys(name):
    theirs = SPIKINGJELLY[name](1.0) if name == "triangle" else SPIKINGJELLY[name]()
    assert as_surrogate(name) == SURROGATES[name](theirs.alpha)


@surrogates
@pytest.mark.parametrize("parameter", PARAMETERS)
def test_area_is_that_of_a_spike(name, parameter):
    """The integral is 1, the height of the step it stands for; SuperSpike's is 2α by definition."""
    d = torch.linspace(-200, 200, 400_001, dtype=torch.float64)
    area = torch.trapezoid(SURROGATES[name](parameter)(d), d).item()
    assert area == pytest.approx(2 * parameter if name == "superspike" else 1.0, rel=2e-2)


@surrogates
@pytest.mark.parametrize("parameter", [0.5, 3.7])
def test_kernels_use_the_same_definition(target, name, parameter):
    """From no past, the online gradient of the input is upstream · surrogate(x - threshold)."""
    surrogate = SURROGATES[name](parameter)
    d = distances(torch.float32).to(target.device)
    x = (1.0 + d).requires_grad_()
    upstream = torch.randn_like(d)
    lif_step_(x, torch.zeros_like(d), surrogate=surrogate, backend=target.backend).backward(upstream)
    assert_near(x.grad, upstream * surrogate(x.detach() - 1.0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numba_compiles_the_same_source(form, dtype):
    """Vectors of scalars through the definition, with no cast to hide a widening."""
    gradient = numba.njit(gradient_for(form, cpu_math))
    d = distances(torch.from_numpy(np.empty(0, dtype)).dtype)
    found = [gradient(value, dtype(0.7), dtype(1.3)) for value in d.numpy()]
    torch.testing.assert_close(
        torch.from_numpy(np.array(found)).to(d.dtype),
        FORMS[form](d, *(d.new_full((), c) for c in (0.7, 1.3))),
        rtol=TOLERANCE[d.dtype],
        atol=1e-37,
    )


@numba.njit
def _exp_of_all(x, out):
    for i in range(len(x)):
        out[i] = cpu_math.exp(x[i])


def float32_exp(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float32)
    out = np.full_like(x, np.nan)
    _exp_of_all(x, out)
    return out


def test_float32_exp_is_within_2_ulp():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-87, 0, 1_000_003), -np.logspace(-30, 1, 10_000), rng.uniform(-1, 0, 100_000)])
    x = x.astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(float32_exp(x).astype(np.float64) - exact) / np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert error.max() < 2


def test_float32_exp_at_its_ends():
    assert float32_exp(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]
    tiny = float32_exp(np.array([-87.5, -100.0, -1e30, -np.inf]))
    assert (tiny > 0).all()
    assert (tiny < 2e-38).all()
    assert np.isnan(float32_exp(np.array([np.nan]))).all()


def test_float64_exp_is_the_librarys():
    x = np.linspace(-700, 0, 1001)
    out = np.full_like(x, np.nan)
    _exp_of_all(x, out)
    assert out.tolist() == [math.exp(v) for v in x]


@surrogates
def test_by_name(name):
    assert isinstance(as_surrogate(name), SURROGATES[name])
    assert as_surrogate(SURROGATES[name](3.0)) == SURROGATES[name](3.0)


def test_objects_compare_and_print_by_value():
    assert Triangle(0.5) == Triangle(gamma=0.5)
    assert hash(Triangle(0.5)) == hash(Triangle(0.5))
    assert Triangle(0.5) != Triangle(1.0)
    assert repr(Triangle(0.5)) == "Triangle(gamma=0.5)"


@surrogates
@pytest.mark.parametrize("parameter", [0, -1.0, float("nan"), float("inf"), "1", None])
def test_parameter_must_be_positive(name, parameter):
    with pytest.raises(ValueError, match=r"must be a positive number, for example 1\.0\.$"):
        SURROGATES[name](parameter)


@pytest.mark.parametrize("name", ["heaviside", "", None, 3, Triangle])
def test_unknown_name(name):
    with pytest.raises(ValueError, match=r"^unknown surrogate .*: pass one of triangle, .*, or an object such as"):
        as_surrogate(name)


def test_base_class_is_no_surrogate():
    with pytest.raises((TypeError, ValueError)):
        Surrogate()
