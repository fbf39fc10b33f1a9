"""The paper's training settings, one recipe a row: what to train, on what, and how."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from .models import MODELS, build_model

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9),
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way to train one network on one dataset."""

    name: str
    model: str
    in_shape: tuple[int, int, int]
    """Channels, height and width of one sample."""
    num_classes: int
    batch_size: int
    steps: int
    """Time steps T."""
    epochs: int
    optimizer: str = "sgd"
    """A name in `OPTIMIZERS`."""
    lr: float
    weight_decay: float
    decay: float = 0.1
    """λ, what is left of a membrane after one time step."""
    threshold: float = 1.0
    events: bool = False
    """Whether a sample is a sequence of T frames of events, or one image shown T times."""

    def build(self, **changes) -> nn.Sequential:
        """The network, `changes` going to `build_model` (for example width=0.25)."""
        settings = {"in_channels": self.in_shape[0], "num_classes": self.num_classes}
        return build_model(self.model, **{**settings, "decay": self.decay, "threshold": self.threshold, **changes})

    def make_optimizer(self) -> Callable[..., torch.optim.Optimizer]:
        """A factory of optimizers for a rule."""
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"unknown optimizer {self.optimizer!r}: choose from {', '.join(OPTIMIZERS)}.")
        return functools.partial(OPTIMIZERS[self.optimizer], lr=self.lr, weight_decay=self.weight_decay)


_CIFAR = {"in_shape": (3, 32, 32), "batch_size": 512, "steps": 4, "epochs": 400, "lr": 0.4, "weight_decay": 5e-5}
_IMAGENET = {"model": "sew_resnet34", "in_shape": (3, 224, 224), "num_classes": 1000, "decay": 0.2}
_EVENTS = {"events": True, "batch_size": 100, "optimizer": "adamw", "weight_decay": 5e-4}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="cifar10", model="resnet18", num_classes=10, **_CIFAR),
        Recipe(name="cifar100", model="resnet19", num_classes=100, **_CIFAR),
        Recipe(name="svhn", model="vgg16", num_classes=10, **{**_CIFAR, "epochs": 200, "lr": 0.1}),
        Recipe(
            name="imagenet-pretrain", batch_size=300, steps=1, epochs=100, lr=0.15, weight_decay=1e-5, **_IMAGENET
        ),
        Recipe(name="imagenet", batch_size=512, steps=4, epochs=10, lr=0.002, weight_decay=0.0, **_IMAGENET),
        Recipe(
            name="cifar10-dvs", model="vgg11", in_shape=(2, 128, 128), num_classes=10, steps=10, epochs=300, lr=1e-3,
            **_EVENTS,
        ),
        Recipe(
            name="gait-day-dvs", model="resnet18", in_shape=(2, 128, 128), num_classes=20, steps=20, epochs=100,
            lr=5e-4, **_EVENTS,
        ),
        Recipe(
            name="har-dvs", model="resnet18_pooled", in_shape=(2, 224, 224), num_classes=300, steps=4, epochs=100,
            lr=1e-3, **_EVENTS,
        ),
    )
}  # fmt: skip


def find(name: str) -> Recipe:
    """The recipe of that name, or for the name of a model the first recipe that trains it."""
    if name in RECIPES:
        return RECIPES[name]
    if name in MODELS:
        return next(recipe for recipe in RECIPES.values() if recipe.model == name)
    raise ValueError(
        f"unknown recipe or model {name!r}: the recipes are {', '.join(RECIPES)}; the models are {', '.join(MODELS)}."
    )
