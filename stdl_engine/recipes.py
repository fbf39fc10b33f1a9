"""What to train, on what, and how: the paper's settings, one recipe a row, and small ones for a laptop's CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from .models import MODELS, build_model
from .neurons import NEURONS
from .planning.published import PUBLISHED
from .rules import RULES, Rule

if TYPE_CHECKING:
    from .data import Dataset

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9),
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way to train one network on one dataset."""

    name: str

    dataset: str
    """A name in `stdl_engine.data.DATASETS`; "npz" and "folder" are for your own data."""
    data: Path = Path("data")
    """The folder that datasets are in; for npz the file, for folder the folder itself."""
    augment: Literal["paper", "light", "none"] = "paper"
    """How training images are varied: as in the paper, only shifted and mirrored, or not at all."""
    size: int | None = None
    """Side of the images, for data that comes in several (digits, digits-events, folder)."""
    in_shape: tuple[int, int, int]
    """Channels, height and width of one sample; in training the data decides."""
    num_classes: int
    """In training the data decides."""
    events: bool = False
    """Whether a sample is a sequence of T frames of events, or one image shown T times; the data decides."""
    on_bad_sample: Literal["stop", "skip"] = "stop"
    """What a file that cannot be read does: stop the run, or be left out and counted."""
    workers: int = 2
    """Processes that read files; data under 2 GB is held in memory and needs none."""

    model: str
    """A name in `stdl_engine.models.MODELS`."""
    width: float = 1.0
    """Multiplies every channel count."""
    neuron: str = "lif"
    """A name in `stdl_engine.neurons.NEURONS`."""
    decay: float = 0.1
    """λ, what is left of a membrane after one time step."""
    threshold: float = 1.0
    """The membrane at which a neuron fires."""
    steps: int
    """Time steps T."""

    rule: str = "stdl"
    """A name in `stdl_engine.rules.RULES`."""
    budget: str | None = None
    """STDL: a fraction ("0.5"), bytes ("2GiB") or "published"; the default is "published" if there is such a row, else
    half."""
    groups: int = 3
    """K of the rule even."""
    memory: Literal["lean", "paper"] = "lean"
    """How activations are kept: in the least memory, or in the plain form; same results, to rounding where
    channels_last on CPU lets convolutions read bits."""

    epochs: int
    batch_size: int
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float
    """At the start; falls along a cosine to zero."""
    weight_decay: float
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    channels_last: bool = True
    """Whether images lie in memory channel by channel for each pixel, which convolutions prefer."""
    compile: bool = False
    """Compile the units of the network with torch.compile."""
    device: str = "auto"
    """"auto" takes a GPU if there is one; else "cpu", "cuda", "cuda:1"."""
    seed: int = 0
    start_from: Path | None = None
    """The folder of a run whose weights to begin with."""
    starts_from: str | None = None
    """The recipe of that run, where this one is a second stage."""

    def load_data(self) -> Dataset:
        """The data, which must be there."""
        from .data import load_dataset  # here, as planning needs no data and should not wait for its libraries

        options = {"steps": self.steps, "on_bad_sample": self.on_bad_sample, "augment": self.augment}
        return load_dataset(self.dataset, self.data, **options, **({"size": self.size} if self.size else {}))

    def for_data(self, data: Dataset) -> Recipe:
        """The recipe for the samples and classes that the data turned out to have."""
        return replace(self, in_shape=tuple(data.in_shape), num_classes=data.num_classes, events=data.events)

    def build(self, **changes) -> nn.Sequential:
        """The network, `changes` going to `build_model` (for example width=0.25)."""
        if self.neuron not in NEURONS:
            raise ValueError(f"unknown neuron {self.neuron!r}: choose from {', '.join(NEURONS)}.")
        settings = {"in_channels": self.in_shape[0], "num_classes": self.num_classes, "width": self.width}
        settings |= {"neuron": NEURONS[self.neuron], "decay": self.decay, "threshold": self.threshold}
        return build_model(self.model, **{**settings, **changes})

    def make_optimizer(self) -> Callable[..., torch.optim.Optimizer]:
        """A factory of optimizers for a rule."""
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"unknown optimizer {self.optimizer!r}: choose from {', '.join(OPTIMIZERS)}.")
        return functools.partial(OPTIMIZERS[self.optimizer], lr=self.lr, weight_decay=self.weight_decay)

    def rule_options(self) -> dict[str, Any]:
        """What this recipe's rule takes beyond what all rules do."""
        if self.rule not in RULES:
            raise ValueError(f"unknown rule {self.rule!r}: choose from {', '.join(RULES)}.")
        if self.budget is not None and self.rule != "stdl":
            raise ValueError(f"the budget is for the rule stdl, and the rule is {self.rule}: leave one of them out.")
        if self.rule == "stdl":
            default = "published" if self.model in PUBLISHED else 0.5
            return {"budget": self.budget or default, "steps": self.steps}
        return {"K": self.groups} if self.rule == "even" else {}

    def make_rule(self, model: nn.Sequential, sample: Tensor, batches: int) -> Rule:
        """The rule that trains the model, with a schedule for so many batches in all."""
        schedule = functools.partial(CosineAnnealingLR, T_max=batches)
        options = {"memory": self.memory, "precision": self.precision, "sequence": self.events, "schedule": schedule}
        if self.channels_last:
            model.to(memory_format=torch.channels_last)
        return RULES[self.rule](model, self.make_optimizer(), sample, **options, **self.rule_options())


_CIFAR = {"in_shape": (3, 32, 32), "batch_size": 512, "steps": 4, "epochs": 400, "lr": 0.4, "weight_decay": 5e-5}
_CIFAR10 = {"dataset": "cifar10", "num_classes": 10, **_CIFAR}
_CIFAR100 = {"dataset": "cifar100", "num_classes": 100, **_CIFAR}
_IMAGENET = {"dataset": "imagenet", "model": "sew_resnet34", "in_shape": (3, 224, 224), "num_classes": 1000}
_PRETRAIN = {"steps": 1, "epochs": 100, "weight_decay": 1e-5, "decay": 0.2, "workers": 8, **_IMAGENET}
_FINETUNE = {"steps": 4, "epochs": 10, "weight_decay": 0.0, "decay": 0.2, "workers": 8, **_IMAGENET}
_EVENTS = {"events": True, "batch_size": 100, "optimizer": "adamw", "weight_decay": 5e-4}
_DIGITS = {"model": "vgg11", "width": 0.25, "num_classes": 10, "steps": 4, "batch_size": 50, "weight_decay": 5e-5}

_ALL = (
    Recipe(name="digits", dataset="digits", in_shape=(1, 16, 16), epochs=4, lr=0.1, **_DIGITS),
    Recipe(
        name="digits-events", dataset="digits-events", in_shape=(2, 16, 16), events=True, epochs=5, lr=0.1, **_DIGITS
    ),
    Recipe(
        name="cifar10-small", model="resnet18", width=0.25, augment="light",
        **{**_CIFAR10, "batch_size": 100, "steps": 2, "epochs": 10, "lr": 0.1},
    ),
    Recipe(name="cifar10", model="resnet18", **_CIFAR10),
    Recipe(name="cifar100", model="resnet19", **_CIFAR100),
    Recipe(name="cifar10-resnet19", model="resnet19", **_CIFAR10),
    Recipe(name="cifar100-resnet18", model="resnet18", **_CIFAR100),
    Recipe(name="svhn", dataset="svhn", model="vgg16", num_classes=10, **{**_CIFAR, "epochs": 200, "lr": 0.1}),
    Recipe(name="imagenet-pretrain", batch_size=300, lr=0.15, **_PRETRAIN),
    Recipe(name="imagenet-pretrain-bptt", rule="bptt", batch_size=256, lr=0.15 * 256 / 300, **_PRETRAIN),
    Recipe(name="imagenet", starts_from="imagenet-pretrain", batch_size=512, lr=0.002, **_FINETUNE),
    Recipe(
        name="imagenet-bptt", rule="bptt", starts_from="imagenet-pretrain-bptt", batch_size=256, lr=0.001, **_FINETUNE
    ),
    Recipe(
        name="cifar10-dvs", dataset="cifar10-dvs", model="vgg11", in_shape=(2, 128, 128), num_classes=10, steps=10,
        epochs=300, lr=1e-3, **_EVENTS,
    ),
    Recipe(
        name="gait-day-dvs", dataset="gait-day-dvs", model="resnet18", in_shape=(2, 128, 128), num_classes=20,
        steps=20, epochs=100, lr=5e-4, **_EVENTS,
    ),
    Recipe(
        name="har-dvs", dataset="har-dvs", model="resnet18_pooled", in_shape=(2, 224, 224), num_classes=300, steps=4,
        epochs=100, lr=1e-3, **_EVENTS,
    ),
    Recipe(
        name="n-mnist", dataset="n-mnist", in_shape=(2, 34, 34), events=True, epochs=10, lr=0.1,
        **{**_DIGITS, "width": 0.125},
    ),
)  # fmt: skip

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}


def find(name: str) -> Recipe:
    """The recipe of that name, or for the name of a model the first recipe that trains it at its full width."""
    if name in RECIPES:
        return RECIPES[name]
    if name in MODELS:
        return next(recipe for recipe in RECIPES.values() if recipe.model == name and recipe.width == 1)
    raise ValueError(
        f"unknown recipe or model {name!r}: the recipes are {', '.join(RECIPES)}; the models are {', '.join(MODELS)}."
    )


def from_dict(values: dict[str, Any]) -> Recipe:
    """A recipe as `as_dict` wrote it."""
    values = {**values, "data": Path(values["data"]), "in_shape": tuple(values["in_shape"])}
    return Recipe(**{**values, "start_from": Path(values["start_from"]) if values["start_from"] else None})


def as_dict(recipe: Recipe) -> dict[str, Any]:
    """A recipe in plain values, as JSON has them."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(recipe).items()}
