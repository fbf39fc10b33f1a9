"""Datasets that need no download: scikit-learn's digits, still, and moving in front of an event camera."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .base import Dataset, MemorySource
from .frames import check_frames_fit, integrate
from .prepare import Preparation, check_augment

TEST = 297
"""Digits kept for testing, of 1797."""


def digits(*, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper", size: int = 16) -> Dataset:
    """Handwritten digits of 8 × 8 enlarged to 16 × 16 or 32 × 32, 1500 to train on and 297 to test; augmented by shifts
    of up to a pixel ("paper" and "light").
    """
    check_augment(augment)
    images, labels, test = _digits(size)
    mean, std = images[~test].mean().item(), images[~test].std().item()
    prepare = Preparation(pad=0 if augment == "none" else 1, mean=(mean,), std=(std,))
    train, held_out = (
        MemorySource(samples=images[part], labels=labels[part], prepare=prepare) for part in (~test, test)
    )
    return Dataset(name="digits", num_classes=10, in_shape=(1, size, size), train=train, test=held_out)


def digits_events(
    *, root: Path, steps: int, on_bad_sample: str = "stop", augment: str = "paper", size: int = 16
) -> Dataset:
    """The same digits moved once around a closed loop in front of a simulated event camera, the way CIFAR10-DVS was
    recorded; T frames of equally many events. Augmented by shifts of up to a pixel ("paper" and "light").
    """
    check_augment(augment)
    images, labels, test = _digits(size)
    check_frames_fit(steps * len(images), size, size)
    frames = _record(images[:, 0], steps)
    prepare = Preparation(pad=0 if augment == "none" else 1)
    train, held_out = (
        MemorySource(samples=frames[part], labels=labels[part], prepare=prepare) for part in (~test, test)
    )
    return Dataset(
        name="digits-events", num_classes=10, in_shape=(2, size, size), events=True, train=train, test=held_out
    )


def _digits(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """All images [N, 1, size, size] from 0 to 1, their labels, and which are for testing: the same ones every time,
    each class in proportion.
    """
    if size not in (16, 32):
        raise ValueError(f"size is {size!r}: the digits come in 16 or 32 pixels.")
    from sklearn.datasets import load_digits  # imported here, as no other dataset should wait for scikit-learn

    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    images = functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    # About every sixth in the order of the classes, so that each class contributes its share and the total is exact.
    order = torch.argsort(labels, stable=True)
    place = torch.arange(len(labels))
    test = torch.empty(len(labels), dtype=torch.bool)
    test[order] = (place + 1) * TEST // len(labels) > place * TEST // len(labels)
    return images, labels, test


def _record(images: Tensor, steps: int, positions: int = 48, threshold: float = 0.2) -> Tensor:
    """The events of a camera in front of which images [N, H, W] move along a loop, as frames [N, T, 2, H, W].

    A pixel emits one event for each `threshold` that its log intensity has moved since its last event, positive or
    negative; it starts at rest with the image in its first position.
    """
    crossed = np.empty((len(images), positions, *images.shape[1:]), np.int8)
    shifts = _along_loop(positions)
    reference = _log_intensity(images, shifts[0])
    for place, shift in enumerate(shifts[1:]):
        # A pixel that returns to its value has moved by a whole number of thresholds; rounding must not decide
        # otherwise.
        thresholds = np.trunc((_log_intensity(images, shift) - reference) / threshold * (1 + 1e-4))
        reference += thresholds * threshold
        crossed[:, place] = thresholds
    return torch.from_numpy(np.stack([_frames(sample, steps) for sample in crossed]))


def _frames(crossed: np.ndarray, steps: int) -> np.ndarray:
    """Frames [T, 2, H, W] of signed counts of events [positions, H, W]."""
    place, row, column = np.nonzero(crossed)
    count = crossed[place, row, column]
    each = np.abs(count)
    x, y, polarity = (np.repeat(values, each) for values in (column, row, count > 0))
    height, width = crossed.shape[1:]
    return integrate(x, y, polarity, steps, height, width).astype(np.uint8)


def _along_loop(positions: int) -> Tensor:
    """[positions + 1, 2]: points of a figure of eight that ends where it began, in units of half an image width."""
    phase = torch.arange(positions + 1) * (2 * math.pi / positions)
    return torch.stack([torch.sin(phase), torch.sin(2 * phase) / 2], dim=1) * 0.25


def _log_intensity(images: Tensor, shift: Tensor) -> np.ndarray:
    """What a camera's pixels see of images [N, H, W] moved by `shift`, with black around them."""
    affine = torch.cat([torch.eye(2), shift[:, None]], dim=1)[None]
    grid = functional.affine_grid(affine, [1, 1, *images.shape[1:]], align_corners=False)
    moved = functional.grid_sample(images[None], grid, align_corners=False)[0]  # the images become channels of one
    return torch.log(moved + 0.1).double().numpy()
