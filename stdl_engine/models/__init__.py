"""The networks, by name. A new one is one file and one line in `MODELS`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from ..neurons import FusedLIF
from .resnet import resnet18, resnet18_pooled, resnet19
from .sew_resnet import sew_resnet34
from .vgg import vgg11, vgg16

MODELS: dict[str, Callable[..., nn.Sequential]] = {
    "resnet18": resnet18,
    "resnet18_pooled": resnet18_pooled,
    "resnet19": resnet19,
    "vgg16": vgg16,
    "vgg11": vgg11,
    "sew_resnet34": sew_resnet34,
}


def build_model(
    name: str,
    *,
    in_channels: int = 3,
    num_classes: int = 10,
    width: float = 1.0,
    neuron: Callable[..., nn.Module] = FusedLIF,
    **neuron_args: Any,
) -> nn.Sequential:
    """A network of the paper as a sequence of units ending in a head.

    `width` multiplies every channel count, so the same shapes run small; `neuron` and its arguments make each neuron
    layer.

    Example:
        >>> model = build_model("resnet18", width=0.25, decay=0.2)
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}: choose from {', '.join(MODELS)}.")
    if not width > 0:
        raise ValueError(f"width is {width}: it must be positive, for example 0.25.")
    channels = functools.partial(_channels, width=width)
    model = MODELS[name](in_channels, num_classes, channels, functools.partial(neuron, **neuron_args))
    # The published configuration is found by it, whatever the width.
    model.architecture = name  # type: ignore[assignment]  # PyTorch's types allow only tensors and modules
    return model


def _channels(channels: int, width: float) -> int:
    return max(1, round(channels * width))
