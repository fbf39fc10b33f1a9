"""Maps between stages as bytes: one bit per spike, one byte per sum or average of spikes, without loss.

What arrives is what `stdl_engine.memory.spikes.keep` returned on the sender, in the same form and memory order, so that
the next subnetwork runs the same code on the same numbers as in one process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ..kernels.layout import dense
from ..memory.spikes import Bits, Counts, Kept, restore

DIVISORS = (1, 4, 9, 16)
"""An average of spikes over a window of this many pixels is a whole number divided by it. A tensor is sent as one byte
per element if one of these divisors reproduces it exactly."""


@dataclass(frozen=True)
class Wire:
    """A tensor to be sent: its bytes, and what is needed to rebuild it exactly. `meta` holds plain values, for JSON."""

    payload: Tensor
    """One dimension, uint8, on the CPU."""
    meta: dict[str, Any]

    @property
    def dense_bytes(self) -> int:
        """What the tensor would take in its own dtype."""
        return math.prod(self.meta["shape"]) * getattr(torch, self.meta["dtype"]).itemsize


def encode(kept: Kept) -> Wire:
    """The smallest form of a map from which it can be rebuilt to the last bit. A fake tensor, which has no values, is
    assumed to be a sum or an average of spikes, unless it has at most one dimension."""
    if isinstance(kept, Bits):
        return Wire(_on_host(kept.small), _meta("bits", kept.shape, kept.stride, kept.dtype))
    if isinstance(kept, Counts):
        small = dense(kept.small)
        return Wire(_on_host(_in_memory_order(small)), _meta("counts", small.shape, small.stride(), kept.dtype))
    return _encode_tensor(dense(restore(kept).detach()))


def _encode_tensor(t: Tensor) -> Wire:
    is_fake = isinstance(t, FakeTensor)
    if t.is_floating_point() and not (is_fake and t.ndim <= 1):
        for divisor in DIVISORS:
            whole = (t * divisor).clamp(0, 255).to(torch.uint8)
            if is_fake or _same_bits(_divided(whole, t.dtype, divisor), t):
                meta = _meta("shares", t.shape, t.stride(), t.dtype) | {"divisor": divisor}
                return Wire(_on_host(_in_memory_order(whole)), meta)
    return Wire(_on_host(_in_memory_order(t).view(torch.uint8)), _meta("dense", t.shape, t.stride(), t.dtype))


def decode(payload: Tensor, meta: dict[str, Any], device: torch.device) -> Kept:
    """The tensor that `encode` was given, on another device if need be."""
    shape, stride, dtype = torch.Size(meta["shape"]), tuple(meta["stride"]), getattr(torch, meta["dtype"])
    payload = payload.to(device, non_blocking=True)
    form = meta["form"]
    if form == "bits":
        return Bits(payload, shape, stride, dtype)
    if form == "counts":
        return Counts(payload.as_strided(shape, stride), dtype)
    if form == "shares":
        return _divided(payload.as_strided(shape, stride), dtype, meta["divisor"])
    return payload.view(dtype).as_strided(shape, stride)


def decoded(wires: list[Wire], device: torch.device) -> Iterator[Kept]:
    """The maps of a message one by one, each released as it is handed on."""
    wires.reverse()
    while wires:
        yield decode(wires[-1].payload, wires.pop().meta, device)


def payload_bytes(wires: Iterable[Wire]) -> int:
    """Bytes of the tensors of a message."""
    return sum(wire.payload.numel() for wire in wires)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Also tells zeros of different sign apart, which are equal as numbers."""
    return torch.equal(_in_memory_order(a).view(torch.uint8), _in_memory_order(b).view(torch.uint8))


def _divided(whole: Tensor, dtype: torch.dtype, divisor: int) -> Tensor:
    return whole.to(dtype) if divisor == 1 else whole.to(dtype).div_(divisor)


def _meta(form: str, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> dict[str, Any]:
    return {"form": form, "shape": list(shape), "stride": list(stride), "dtype": str(dtype).removeprefix("torch.")}


def _in_memory_order(t: Tensor) -> Tensor:
    """The elements of a dense tensor as they lie in memory."""
    return t.as_strided((t.numel(),), (1,))


def _on_host(t: Tensor) -> Tensor:
    return t.detach().cpu().contiguous()
