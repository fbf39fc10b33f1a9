"""Reading a batch: its frames in time, and a sentence that says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .finite import has_values


def split_frames(x: Tensor, T: int, in_shape: tuple[int, ...]) -> list[Tensor]:
    """The input of each of T time steps: x itself every time if it is [B, ...], its frames if it is [T, B, ...]."""
    if not isinstance(T, int) or isinstance(T, bool) or T < 1:
        raise ValueError(f"T is {T!r}: the number of time steps must be a whole number from 1 up.")
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"the input is {kind}: pass a tensor of floating-point numbers, for example x.float() / 255.")
    expected = 1 + len(in_shape)
    if x.ndim not in (expected, expected + 1):
        sample = ", ".join(map(str, in_shape))
        raise ValueError(
            f"the input has shape {tuple(x.shape)}: pass [B, {sample}], or a sequence of them with T in front."
        )
    if x.shape[-len(in_shape)] != in_shape[0]:
        raise ValueError(
            f"the input has shape {tuple(x.shape)}, and the network takes {in_shape[0]} "
            f"{'channels' if len(in_shape) > 1 else 'features'}: pass [B, {', '.join(map(str, in_shape))}]."
        )
    if x.ndim == expected:
        return [x] * T
    if len(x) != T:
        raise ValueError(f"the sequence has {len(x)} frames and T is {T}: pass T={len(x)}, or T frames.")
    return list(x)


def check_sample(sample: Tensor, model: nn.Sequential) -> None:
    """Reject a sample that is not one batch without time."""
    dims = getattr(model[0], "input_dims", 3)
    wanted = "[B, C, H, W]" if dims == 3 else "[B, features]"
    if sample.ndim == dims + 2:
        raise ValueError(
            f"the sample has shape {tuple(sample.shape)}, which is a sequence: pass one frame of it, sample[0], and "
            "sequence=True if batches will be sequences."
        )
    if sample.ndim != dims + 1:
        raise ValueError(f"the sample has shape {tuple(sample.shape)}: pass one batch of input, {wanted}.")
    channels = getattr(model[0], "in_channels", None)
    if dims == 3 and channels is not None and sample.shape[1] != channels:
        raise ValueError(
            f"the sample has shape {tuple(sample.shape)} and the first unit takes {channels} channels: pass {wanted} "
            f"with C = {channels}."
        )


def check_batch(x: Tensor, y: Tensor, batch_size: int, classes: int, modules: Iterable[nn.Module]) -> None:
    """Reject a batch that these modules cannot learn from."""
    if y.shape != (batch_size,) or y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError(
            f"the labels have shape {tuple(y.shape)} and dtype {y.dtype}: pass one whole number for each of "
            f"{batch_size} samples."
        )
    if batch_size == 0:
        raise ValueError("the batch is empty: pass at least two samples.")
    if batch_size == 1 and any(isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d) for module in modules):
        raise ValueError(
            "batch norm cannot learn from a batch of one: pass two samples or more (drop_last=True in a DataLoader)."
        )
    if not has_values(y) or y.device.type != "cpu":  # on a GPU this would wait for the device; the loss checks again
        return
    if not x.isfinite().all():
        raise ValueError("the input has values that are not finite numbers (NaN or infinite): replace them.")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(
            f"labels run from {y.min()} to {y.max()}, the network has {classes} classes: they must be 0 to "
            f"{classes - 1}."
        )
