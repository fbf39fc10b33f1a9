"""What to train, on what, and how: one recipe per row of the paper's settings, and small ones for a laptop's CPU.

A recipe is settings and nothing else; `stdl_engine.building` makes data, networks and rules from it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from .models import MODELS
from .neurons import NEURONS
from .planning.auxiliary import VARIANTS
from .planning.budgets import parse_budget
from .rules import CHOICES
from .settings import Between, OneOf, OneOfOrOwn, SettingError, check_fields

SMALLEST_BATCH = 2
"""The fewest samples that batch norm can learn from."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way to train one network on one dataset; impossible settings raise `SettingError`."""

    name: str
    """The name, which the folders of its runs get."""

    dataset: str
    """A name in `stdl_engine.data.DATASETS` (npz, folder and event-folder are for your own data), or your own function
    that loads data, "package.module:function"."""
    data: Path = Path("data")
    """The folder that datasets are in; for npz the file itself, for folder and event-folder the folder itself."""
    augment: Literal["paper", "light", "none"] = "paper"
    """How training images are augmented: as in the paper, only shifted and mirrored, or not at all."""
    size: Annotated[int | None, Between(1, 4096)] = None
    """Side length of the images, for data that comes in several sizes (digits, digits-events, folder)."""
    split_by: Literal["number", "count", "time"] | None = None
    """How recordings of events are cut into T frames: of equally many events (number or count, the default), or of
    equal duration (time)."""
    sensor: str | None = None
    """The camera's width and height for event-folder, "346x260"; by default the files decide."""
    columns: str | None = None
    """The order of the columns of event-folder's plain arrays, "xytp"; by default "txyp"."""
    in_shape: Annotated[tuple[int, int, int], Between(1, 65536)]
    """Channels, height and width of one sample; in training the data decides this."""
    num_classes: Annotated[int, Between(1, 1_000_000)]
    """The number of classes; in training the data decides this."""
    events: bool = False
    """Whether a sample is a sequence of T frames of events or one image shown T times; in training the data decides."""
    on_bad_sample: Literal["stop", "skip"] = "stop"
    """What happens if a file cannot be read: it stops the run, or it is left out and counted."""
    workers: Annotated[int, Between(0, 256)] = 2
    """Processes that read files; data under 2 GB is held in memory and needs none."""

    model: Annotated[str, OneOfOrOwn(MODELS)]
    """A name in `stdl_engine.models.MODELS`, or your own function that builds a network, "package.module:function"."""
    width: Annotated[float, Between(0.001, 100)] = 1.0
    """Multiplies every channel count."""
    neuron: Annotated[str, OneOf(NEURONS)] = "lif"
    """A name in `stdl_engine.neurons.NEURONS`."""
    decay: Annotated[float, Between(0, 1)] = 0.1
    """λ, the share of a membrane that is left after one time step."""
    threshold: Annotated[float, Between(1e-6, 1e6)] = 1.0
    """The membrane at which a neuron fires."""
    steps: Annotated[int, Between(1, 10_000)]
    """Time steps T."""

    rule: Annotated[str, OneOf(CHOICES)] = "stdl"
    """A name in `stdl_engine.rules.RULES`; or "auto", the most exact rule that fits the budget."""
    budget: str | None = None
    """Bytes that a training step may take ("2GiB"). For STDL also a fraction ("0.5") or "published"; its default is
    "published" if the paper has one for the network, otherwise half."""
    recompute: Literal["none", "all", "twice", "auto"] = "auto"
    """Which pieces of the network run again in backward instead of being kept: none; all; all twice (for
    rules other than BPTT: all); or as few as a budget in bytes requires. The results are the same."""
    chunk: Annotated[int | Literal["auto"] | None, Between(1, 10_000)] = None
    """How many time steps of a subnetwork run together, which is faster and takes more memory; "auto" is as many as a
    budget in bytes allows, or without one as many as take at most a quarter more memory than one by one. The results
    are the same within rounding. The default is auto, and 1 for a network of your own, which may need its time steps
    one by one."""
    variant: Annotated[str, OneOf(VARIANTS)] = "stdl"
    """STDL: how auxiliary networks are made, by the paper's method or by one of its ablations."""
    layerwise: bool = False
    """STDL: make every unit its own subnetwork (ablation)."""
    groups: Annotated[int, Between(1, 10_000)] = 3
    """K, the number of groups of the rule even."""
    memory: Literal["lean", "paper"] = "lean"
    """How activations are kept: lean, in little memory, or in the paper's plain form. The results are the same
    within rounding, as lean memory has kernels of its own."""

    epochs: Annotated[int, Between(1, 1_000_000)]
    batch_size: Annotated[int, Between(SMALLEST_BATCH, 10_000_000)]
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Between(0, 1e30)]
    """The learning rate at the start; it falls along a cosine to zero."""
    weight_decay: Annotated[float, Between(0, 1e6)]
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    channels_last: bool = True
    """Whether the channels of a pixel are adjacent in memory, which convolutions prefer."""
    compile: bool = False
    """Compile the units of the network with torch.compile."""
    sync_norm: bool = False
    """If torchrun spreads batches over ranks: compute batch norm over the samples of all ranks (docs/parallel.md)."""
    malloc: Literal["fast", "system", "tight"] = "fast"
    """How memory is allocated on CPU: fast keeps freed memory for the next tensors; tight returns it to the system at
    once, so that the process takes little more than its live tensors, and is slower; system is between the two
    (docs/memory.md)."""
    device: str = "auto"
    """"auto" uses a GPU if there is one; or "cpu", "cuda", "cuda:1"."""
    seed: Annotated[int, Between(0, 2**63 - 1)] = 0
    validate: Annotated[float, Between(0, 0.9)] = 0.0
    """The share of the training set kept apart to choose the best epoch; with 0 it is chosen on the test set."""
    start_from: Path | None = None
    """The folder of a run whose weights are the initial ones."""
    first_stage: str | None = None
    """The recipe of that run, if this one is a second stage."""

    def __post_init__(self) -> None:
        check_fields(self)
        if "/" in self.name or self.name in ("", ".", ".."):
            raise SettingError("name", f"name is {self.name!r}: it must be a word, as it names the folders of runs.")
        for what, value, default in (
            ("the variant", self.variant, "stdl"),
            ("layerwise", self.layerwise, False),
        ):
            if self.rule != "stdl" and value != default:
                raise ValueError(f"{what} is for the rule stdl, and the rule is {self.rule}: leave one of them out.")
        in_bytes = self.budget is not None and parse_budget(self.budget).size is not None
        if self.rule == "auto" and not in_bytes:
            raise SettingError("budget", 'budget must be bytes, such as "2GiB", for the rule auto to choose by.')
        if self.rule != "stdl" and self.budget is not None and not in_bytes:
            raise SettingError(
                "budget",
                f"budget is {self.budget!r}, which only the rule stdl takes, and the rule is {self.rule}: write bytes, "
                'such as "2GiB", or leave one of them out.',
            )
        if self.memory == "paper" and self.recompute in ("all", "twice"):
            raise SettingError("recompute", f"recompute is {self.recompute!r}: that takes the memory lean.")
        if self.memory == "paper" and self.chunk not in (1, "auto", None):
            raise SettingError("chunk", f"chunk is {self.chunk}: time steps together take the memory lean.")


Part = dict[str, Any]
"""Some settings of a recipe by name; `Recipe` checks them."""

_CIFAR: Part = {"in_shape": (3, 32, 32), "batch_size": 512, "steps": 4, "epochs": 400, "lr": 0.4, "weight_decay": 5e-5}
_CIFAR10: Part = {"dataset": "cifar10", "num_classes": 10, **_CIFAR}
_CIFAR100: Part = {"dataset": "cifar100", "num_classes": 100, **_CIFAR}
_IMAGENET: Part = {"dataset": "imagenet", "model": "sew_resnet34", "in_shape": (3, 224, 224), "num_classes": 1000}
_PRETRAIN: Part = {"steps": 1, "epochs": 100, "weight_decay": 1e-5, "decay": 0.2, "workers": 8, **_IMAGENET}
_FINETUNE: Part = {"steps": 4, "epochs": 10, "weight_decay": 0.0, "decay": 0.2, "workers": 8, **_IMAGENET}
_EVENTS: Part = {"events": True, "batch_size": 100, "optimizer": "adamw", "weight_decay": 5e-4}
_DIGITS: Part = {"model": "vgg11", "width": 0.25, "num_classes": 10, "steps": 4, "batch_size": 50, "weight_decay": 5e-5}

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
    Recipe(name="imagenet", first_stage="imagenet-pretrain", batch_size=512, lr=0.002, **_FINETUNE),
    Recipe(
        name="imagenet-bptt", rule="bptt", first_stage="imagenet-pretrain-bptt", batch_size=256, lr=0.001, **_FINETUNE
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


def by_rule(recipe: Recipe, rule: str, memory: str | None = None) -> Recipe:
    """The recipe with another rule, and with another form of memory if one is named; settings that only STDL takes are
    kept only for STDL."""
    only_stdl = {} if rule == "stdl" else {"budget": None, "variant": "stdl", "layerwise": False}
    changes: Part = {"rule": rule, "memory": memory or recipe.memory, **only_stdl}
    return replace(recipe, **changes)


def chunk_of(recipe: Recipe) -> int | str:
    """How many time steps run together, as rules are told."""
    if recipe.chunk is not None:
        return recipe.chunk
    return 1 if ":" in recipe.model else "auto"


def as_dict(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain values, for JSON."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(recipe).items()}


def from_dict(values: Mapping[str, Any]) -> Recipe:
    """A recipe from what `as_dict` wrote; missing settings get their defaults, if they have any."""
    values = by_names_of_today(values)
    check_names(values)
    missing = [field.name for field in fields(Recipe) if field.name not in values and not hasattr(Recipe, field.name)]
    if missing:
        raise ValueError(f"a recipe needs {', '.join(missing)} too: add what is missing.")
    return Recipe(**values)


def by_names_of_today(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an older run, in which `malloc` was `tight_malloc`."""
    values = dict(values)
    if isinstance(tight := values.get("tight_malloc"), bool) and "malloc" not in values:
        del values["tight_malloc"]
        values["malloc"] = "tight" if tight else "system"
    return values


def check_names(names: Mapping[str, Any]) -> None:
    """Reject names that are not settings of a recipe."""
    known = [field.name for field in fields(Recipe)]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(known)}."
            raise ValueError(f"a recipe has no setting {name!r}: {hint}")
