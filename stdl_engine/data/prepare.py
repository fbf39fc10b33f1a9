"""From stored samples to what a network sees: crop, flip, AutoAugment, normalise, cutout, one batch at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .policy import auto_augment

AUGMENT = ("paper", "light", "none")


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What happens to the samples of a batch, in the order of the fields. Each sample draws its own numbers; the frames
    of one sequence of events share them.
    """

    size: tuple[int, int] | None = None
    """Height and width to crop to, at random in training and in the centre otherwise; None keeps the sample's size."""
    centred: bool = False
    """Crop in the centre even in training, and do not augment."""
    pad: int = 0
    """Black pixels added on each side before a random crop back to `size`."""
    flip: bool = False
    """Mirror half of the samples at random, left to right."""
    policy: bool = False
    """AutoAugment with its CIFAR-10 policy; needs 3 channels of bytes."""
    mean: tuple[float, ...] | None = None
    """The mean per channel, which is subtracted; for samples in bytes as a fraction of 255."""
    std: tuple[float, ...] | None = None
    """The standard deviation per channel, which samples are divided by."""
    cutout: int = 0
    """Side of a square set to zero after normalising, its centre anywhere in the image."""

    def __call__(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """[B, C, H, W] as float32 in channels_last, [B, T, C, H, W] as float32; augmented if there is a generator."""
        frames = x.shape[1:-3]
        x = x.flatten(1, -3)
        height, width = self.size or x.shape[-2:]
        size = height, width
        if generator is None or self.centred:
            x = centre_crop(x, size)
        else:
            if self.pad or self.flip or size != tuple(x.shape[-2:]):
                x = random_crop(x, size, self.pad, self.flip, generator)
            if self.policy:
                x = auto_augment(x, generator)
        x = x.unflatten(1, (*frames, -1)) if frames else x
        x = normalise(x, self.mean, self.std)
        if generator is not None and self.cutout:
            x = cutout(x, self.cutout, generator)
        return x.contiguous(memory_format=torch.contiguous_format if frames else torch.channels_last)

    def still(self) -> Preparation:
        """The same without augmentation, whether there is a generator or not."""
        return replace(self, centred=True, pad=0, flip=False, policy=False, cutout=0)


def cifar_preparation(augment: str, mean: tuple[float, ...], std: tuple[float, ...]) -> Preparation:
    """The paper's augmentation of CIFAR, only its crop and flip, or none."""
    if augment == "none":
        return Preparation(mean=mean, std=std)
    paper = augment == "paper"
    return Preparation(pad=4, flip=True, policy=paper, cutout=16 if paper else 0, mean=mean, std=std)


def centre_crop(x: Tensor, size: tuple[int, int]) -> Tensor:
    """The middle of [..., H, W]."""
    top, left = ((have - want) // 2 for have, want in zip(x.shape[-2:], size, strict=True))
    return x[..., top : top + size[0], left : left + size[1]]


def random_crop(x: Tensor, size: tuple[int, int], pad: int, flip: bool, generator: torch.Generator) -> Tensor:
    """A random window of `size` of each padded [C, H, W], half of them mirrored if `flip`, in one gather."""
    batch, channels, height, width = x.shape
    down = torch.randint(height + 2 * pad - size[0] + 1, (batch, 1), generator=generator)
    right = torch.randint(width + 2 * pad - size[1] + 1, (batch, 1), generator=generator)
    rows, columns = down + torch.arange(size[0]), right + torch.arange(size[1])
    if flip:
        mirrored = torch.randint(2, (batch, 1), generator=generator, dtype=torch.bool)
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = x.new_zeros(batch, height + 2 * pad, width + 2 * pad, channels)
    padded[:, pad : pad + height, pad : pad + width] = x.permute(0, 2, 3, 1)
    which = torch.arange(batch)[:, None, None]
    return padded[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def normalise(x: Tensor, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> Tensor:
    """[..., C, H, W] as float32, with zero mean and unit deviation per channel if those are known."""
    scale = 255.0 if x.dtype == torch.uint8 else 1.0
    x = x.to(torch.float32, copy=True)
    if mean is None or std is None:
        return x
    # float64 for the few constants, so that float32 rounds once
    shift, width = (torch.tensor(value, dtype=torch.float64)[:, None, None] * scale for value in (mean, std))
    return x.sub_(shift.float()).mul_((1 / width).float())


def cutout(x: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """[B, ..., H, W] with a square of zeros in each sample, clipped at the border of the image."""
    keep = []
    for length in x.shape[-2:]:
        start = torch.randint(length, (len(x), 1), generator=generator) - side // 2
        place = torch.arange(length)
        keep.append((place < start) | (place >= start + side))
    mask = keep[0][:, :, None] | keep[1][:, None, :]
    return x.mul_(mask.reshape(len(x), *[1] * (x.ndim - 3), *x.shape[-2:]))


def check_augment(augment: str) -> None:
    if augment not in AUGMENT:
        raise ValueError(f"augment is {augment!r}: choose from {', '.join(AUGMENT)}.")
