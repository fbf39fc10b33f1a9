"""Data and optimizer for training whole networks: random images of CIFAR's size, and SGD with momentum."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def batch_of(size: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 3, 32, 32, generator=generator)
    return x.to(device), torch.randint(10, (size,), generator=generator).to(device)
