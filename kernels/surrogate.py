"""Surrogate gradients: what stands in for the derivative of the spike, one definition each for every backend.

A surrogate is a function of `d = m - threshold` and two runtime scalars `a`, `b`, computed once from the user's
parameter. The functions below use only the names `xp.where`, `xp.abs` and `xp.exp`, which torch, triton.language and
our CPU maths share: `gradient_for(xp)` rebinds `xp`, so the reference, the Triton kernels and the CPU kernels compile
the same source. They contain no numeric literal except the 0 in `where`, because a literal would widen float32
arithmetic in numba.

Definitions follow SpikingJelly's; `Triangle` is its PiecewiseQuadratic with width 1/alpha.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch as xp


def _triangle(d, a, b):
    return xp.where(xp.abs(d) < a, (a - xp.abs(d)) * b, 0.0)


def _rectangle(d, a, b):
    return xp.where(xp.abs(d) < a, b, 0.0)


def _sigmoid(d, a, b):
    e = xp.exp(-xp.abs(a * d))
    return a * e / ((b + e) * (b + e))


def _inverse_square(d, a, b):
    return a / (b + d * d)


def _inverse_quadratic(d, a, b):
    return a / ((b + xp.abs(d)) * (b + xp.abs(d)))


def _exponential(d, a, b):
    return b * xp.exp(-a * xp.abs(d))


def _gaussian(d, a, b):
    return b * xp.exp(-a * (d * d))


@dataclass(frozen=True)
class Surrogate:
    """Base of all surrogates; a subclass names its gradient's `form` and turns its one parameter into `constants`."""

    form: ClassVar[str]

    def __post_init__(self) -> None:
        (field,) = (f.name for f in dataclasses.fields(self))
        value = getattr(self, field)
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ValueError(
                f"{type(self).__name__}({field}={value!r}): {field} must be a positive number, for example 1.0."
            )

    @property
    def constants(self) -> tuple[float, float]:
        raise NotImplementedError

    def __call__(self, d: Any) -> Any:
        """The surrogate gradient at `d = m - threshold`, in plain PyTorch."""
        return evaluate(d, self.form, *self.constants)


@dataclass(frozen=True)
class Triangle(Surrogate):
    """max(0, γ - |d|) / γ²"""

    gamma: float = 1.0
    form = "triangle"

    @property
    def constants(self) -> tuple[float, float]:
        return self.gamma, 1.0 / self.gamma**2


@dataclass(frozen=True)
class Rectangle(Surrogate):
    """α where |d| < 1 / (2α), else 0"""

    alpha: float = 1.0
    form = "rectangle"

    @property
    def constants(self) -> tuple[float, float]:
        return 0.5 / self.alpha, self.alpha


@dataclass(frozen=True)
class Sigmoid(Surrogate):
    """α σ(αd) (1 - σ(αd))"""

    alpha: float = 4.0
    form = "sigmoid"

    @property
    def constants(self) -> tuple[float, float]:
        return self.alpha, 1.0


@dataclass(frozen=True)
class ATan(Surrogate):
    """(α/2) / (1 + (π/2 · α · d)²)"""

    alpha: float = 2.0
    form = "inverse_square"

    @property
    def constants(self) -> tuple[float, float]:
        slope = math.pi * self.alpha / 2
        return self.alpha / 2 / slope**2, 1 / slope**2


@dataclass(frozen=True)
class PiecewiseExp(Surrogate):
    """(α/2) exp(-α|d|)"""

    alpha: float = 1.0
    form = "exponential"

    @property
    def constants(self) -> tuple[float, float]:
        return self.alpha, self.alpha / 2


@dataclass(frozen=True)
class SoftSign(Surrogate):
    """1 / (2α (1/α + |d|)²)"""

    alpha: float = 2.0
    form = "inverse_quadratic"

    @property
    def constants(self) -> tuple[float, float]:
        return 0.5 / self.alpha, 1.0 / self.alpha


@dataclass(frozen=True)
class SuperSpike(Surrogate):
    """α / (1 + |d|)²"""

    alpha: float = 1.0
    form = "inverse_quadratic"

    @property
    def constants(self) -> tuple[float, float]:
        return self.alpha, 1.0


@dataclass(frozen=True)
class Erf(Surrogate):
    """(α/√π) exp(-α²d²)"""

    alpha: float = 2.0
    form = "gaussian"

    @property
    def constants(self) -> tuple[float, float]:
        return self.alpha**2, self.alpha / math.sqrt(math.pi)


FORMS = {
    "triangle": _triangle,
    "rectangle": _rectangle,
    "sigmoid": _sigmoid,
    "inverse_square": _inverse_square,
    "inverse_quadratic": _inverse_quadratic,
    "exponential": _exponential,
    "gaussian": _gaussian,
}


def evaluate(d: Any, form: str, a: float, b: float) -> Any:
    """A surrogate gradient of this form at `d = m - threshold`, in plain PyTorch."""
    # As tensors: torch.where of two plain numbers would give the default dtype, not that of d.
    return FORMS[form](d, d.new_full((), a), d.new_full((), b))


def of_form(form: str, a: float, b: float) -> Callable[[Any], Any]:
    """The surrogate gradient with these constants, in the form that kernels take."""
    return functools.partial(evaluate, form=form, a=a, b=b)


SURROGATES: dict[str, type[Surrogate]] = {
    "triangle": Triangle,
    "rectangle": Rectangle,
    "sigmoid": Sigmoid,
    "atan": ATan,
    "piecewise_exp": PiecewiseExp,
    "softsign": SoftSign,
    "superspike": SuperSpike,
    "erf": Erf,
}


def as_surrogate(surrogate: Surrogate | str) -> Surrogate:
    """A surrogate, or its name in `SURROGATES` for the default parameter."""
    if isinstance(surrogate, Surrogate):
        return surrogate
    if isinstance(surrogate, str) and surrogate in SURROGATES:
        return SURROGATES[surrogate]()
    raise ValueError(
        f"unknown surrogate {surrogate!r}: pass one of {', '.join(SURROGATES)}, or an object such as Triangle(1.0)."
    )


@functools.cache
def gradient_for(form: str, namespace: types.ModuleType) -> types.FunctionType:
    """The gradient of this form with `xp` bound to `namespace`, ready for a backend's compiler."""
    source = FORMS[form]
    return types.FunctionType(source.__code__, {"xp": namespace, "__name__": source.__module__}, source.__name__)
