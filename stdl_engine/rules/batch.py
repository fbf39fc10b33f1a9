"""Reading a batch: its frames in time, and what is wrong with it in one sentence."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def split_frames(x: Tensor, T: int, in_shape: tuple[int, ...]) -> list[Tensor]:
    """The input of each of T time steps: x itself every time if it is [B, ...], its frames if it is [T, B, ...]."""
    if not isinstance(T, int) or isinstance(T, bool) or T < 1:
        raise ValueError(f"T is {T!r}: the number of time steps must be a whole number from 1 up.")
    expected = 1 + len(in_shape)
    if x.ndim not in (expected, expected + 1):
        sample = ", ".join(map(str, in_shape))
        raise ValueError(
            f"the input has shape {tuple(x.shape)}: pass [B, {sample}], or a sequence of them with T in front."
        )
    if x.ndim == expected:
        return [x] * T
    if len(x) != T:
        raise ValueError(f"the sequence has {len(x)} frames and T is {T}: pass T={len(x)}, or T frames.")
    return list(x)


def check_batch(x: Tensor, y: Tensor, classes: int, modules: Iterable[nn.Module]) -> None:
    """Reject a batch that these modules cannot learn from."""
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError(
            f"the labels have shape {tuple(y.shape)} and dtype {y.dtype}: pass one whole number for each of {len(x)} "
            "samples."
        )
    if len(x) == 0:
        raise ValueError("the batch is empty: pass at least two samples.")
    if len(x) == 1 and any(isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d) for module in modules):
        raise ValueError(
            "batch norm cannot learn from a batch of one: pass two samples or more (drop_last=True in a DataLoader)."
        )
    has_values = not (isinstance(y, torch._subclasses.FakeTensor) or y.is_meta)
    if has_values and (y.min() < 0 or y.max() >= classes):
        raise ValueError(
            f"labels run from {y.min()} to {y.max()}, the network has {classes} classes: they must be 0 to "
            f"{classes - 1}."
        )
