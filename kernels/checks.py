"""Refuses arguments that no kernel can take, in one sentence each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from . import dispatch
from .layout import is_dense, same_order

RESETS = ("soft", "hard", "none")
STATE_DTYPE = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float64: torch.float64,
}
"""The dtype of the state and of the arithmetic, for each dtype of the input."""


def check_tensors(x: Tensor, states: Sequence[Tensor], sequence: bool, backend: str) -> None:
    """Reject an input, one time step or a `sequence`, and states that do not fit each other or the backend."""
    shape, dtype = x.shape, STATE_DTYPE.get(x.dtype)
    if sequence:
        if x.ndim == 0 or len(x) == 0:
            raise ValueError(f"the sequence has shape {tuple(x.shape)}: pass [T, ...] with at least one time step.")
        shape = shape[1:]
    for state in states:
        if state.dtype is not dtype or state.shape != shape or state.device != x.device:
            refuse_state(x, shape, state)
    if dtype is torch.float64 and dispatch.choose(backend, x.device) == "triton":  # its scalars are float32
        raise TypeError(
            'float64 runs in the backends "cpu" and "reference" only: pass backend="reference", or float32 tensors.'
        )


def refuse_state(x: Tensor, shape: torch.Size, m: Tensor) -> NoReturn:
    """Raise if this state does not fit time steps of this shape."""
    if x.dtype not in STATE_DTYPE:
        raise TypeError(
            f"the input's dtype is {x.dtype}: pass float32, float16, bfloat16 or float64, for example x.float()."
        )
    if m.shape != shape:
        raise ValueError(
            f"the state has shape {tuple(m.shape)}, the input {tuple(shape)}: reset the state when the shape changes."
        )
    if m.dtype != STATE_DTYPE[x.dtype]:
        raise TypeError(
            f"the state's dtype is {m.dtype}, {x.dtype} input needs {STATE_DTYPE[x.dtype]}: pass "
            f"m.to({STATE_DTYPE[x.dtype]})."
        )
    raise ValueError(f"the state is on {m.device}, the input on {x.device}: move one to the other.")


def check_parameters(decay: float, threshold: float, reset: str) -> None:
    """Reject parameters for which the equation makes no sense."""
    if not 0 < threshold < math.inf:
        raise ValueError(f"threshold is {threshold}: it must be positive and finite, for example 1.0.")
    if not 0 <= decay <= 1:
        raise ValueError(f"decay is {decay}: it must be between 0 (no memory) and 1 (no leak), for example 0.1.")
    if reset not in RESETS:
        raise ValueError(f"unknown reset {reset!r}: pass one of {', '.join(RESETS)}.")


def check_decay(w: Tensor, x: Tensor) -> None:
    """Reject a learned decay that is not one number on the input's device."""
    if w.numel() != 1 or not w.is_floating_point():
        raise ValueError(
            f"w has shape {tuple(w.shape)} and dtype {w.dtype}: it must be one floating-point number, for example "
            "torch.zeros(1)."
        )
    if w.device != x.device:
        raise ValueError(f"w is on {w.device}, the input on {x.device}: move one to the other.")


def check_writable(name: str, m: Tensor, adaptation: Tensor | None) -> None:
    """Reject states that the step `name`, which ends in an underscore, cannot overwrite."""
    one = adaptation is None
    if m.requires_grad or (adaptation is not None and adaptation.requires_grad):
        raise ValueError(
            f"{name} writes over its {'state' if one else 'states'}, which must not require a gradient: pass "
            f"{'m.detach()' if one else 'them detached'}, or use {name[:-1]}."
        )
    if adaptation is None and not is_dense(m):
        raise ValueError(
            f"{name} needs a dense state, this one has shape {tuple(m.shape)} and strides {m.stride()}: pass "
            "m.contiguous()."
        )
    if adaptation is not None and not (is_dense(m) and is_dense(adaptation) and same_order(adaptation, m)):
        raise ValueError(
            f"{name} needs dense states in one memory order, these have shape {tuple(m.shape)} and strides "
            f"{m.stride()} and {adaptation.stride()}: pass both .contiguous()."
        )
