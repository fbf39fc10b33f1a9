"""What a recipe asks for: its data, its network, its rule, and the peak memory of its training step beforehand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from .models import build_model
from .neurons import NEURONS
from .own_functions import call_own
from .planning.network import Network, check_model
from .planning.plan import Plan
from .planning.plan_values import plan_of
from .planning.planner import Prediction, predict
from .planning.published import PUBLISHED
from .recipes import SMALLEST_BATCH, Recipe, chunk_of
from .rules import CHOICES, RULES, Rule, candidates

if TYPE_CHECKING:
    from .data import Dataset

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9),
    "adamw": torch.optim.AdamW,
}

ONLY_IF_GIVEN = ("size", "split_by", "sensor", "columns")
"""Settings that only some datasets have; for the others they are refused."""


def load_data(recipe: Recipe) -> Dataset:
    """The data of a recipe; raises if it cannot be found."""
    from .data import load_dataset  # imported here, as planning needs no data and should not wait for its libraries

    options = {name: getattr(recipe, name) for name in ONLY_IF_GIVEN}
    options = {name: value for name, value in options.items() if value is not None}
    common: dict[str, Any] = {"steps": recipe.steps, "on_bad_sample": recipe.on_bad_sample, "augment": recipe.augment}
    return load_dataset(recipe.dataset, recipe.data, **common, **options)


def for_data(recipe: Recipe, data: Dataset) -> Recipe:
    """The recipe with the shape of samples and the number of classes that the data has."""
    return replace(recipe, in_shape=(*data.in_shape,), num_classes=data.num_classes, events=data.events)


def build_network(recipe: Recipe) -> nn.Sequential:
    """The network of a recipe, on the default device, its weights drawn from torch's generator."""
    neuron: dict[str, Any] = {"neuron": NEURONS[recipe.neuron], "decay": recipe.decay, "threshold": recipe.threshold}
    if ":" not in recipe.model:
        channels = recipe.in_shape[0]
        return build_model(
            recipe.model, in_channels=channels, num_classes=recipe.num_classes, width=recipe.width, **neuron
        )
    make_neuron = functools.partial(neuron.pop("neuron"), **neuron)
    settings = {"in_shape": recipe.in_shape, "num_classes": recipe.num_classes, "width": recipe.width}
    model = call_own(recipe.model, make_neuron=make_neuron, **settings)
    try:
        check_model(model)
    except TypeError as error:
        raise ValueError(f"{recipe.model} returned what cannot be trained: {error}") from error
    if model[-1].num_classes != recipe.num_classes:
        raise ValueError(
            f"{recipe.model} returned a network for {model[-1].num_classes} classes, and there are "
            f"{recipe.num_classes}: use the num_classes that it is called with."
        )
    return model


def optimizer_factory(recipe: Recipe) -> Callable[..., torch.optim.Optimizer]:
    """Makes the optimizer of each subnetwork from its parameters."""
    return functools.partial(OPTIMIZERS[recipe.optimizer], lr=recipe.lr, weight_decay=recipe.weight_decay)


def rule_options(recipe: Recipe) -> dict[str, Any]:
    """The options of the recipe's rule, without the schedule."""
    budget: str | float | None = recipe.budget
    if recipe.rule == "stdl":
        budget = budget or ("published" if recipe.model in PUBLISHED else 0.5)
    limited = {"budget": budget, "recompute": recipe.recompute, "chunk": chunk_of(recipe), "steps": recipe.steps}
    return unbounded_options(recipe) | limited


def unbounded_options(recipe: Recipe) -> dict[str, Any]:
    """The same options without those that a budget in bytes decides."""
    options: dict[str, Any] = {"memory": recipe.memory, "precision": recipe.precision, "sequence": recipe.events}
    if recipe.rule == "stdl":
        options |= {"variant": recipe.variant, "layerwise": recipe.layerwise}
    return options | ({"K": recipe.groups} if recipe.rule == "even" else {})


def make_rule(
    recipe: Recipe,
    model: nn.Sequential,
    sample: Tensor,
    batches: int,
    saved: Mapping[str, Any] | None = None,
    plan: Plan | None = None,
) -> Rule:
    """The rule that trains the model, with a schedule for this many batches in total. It has the plan of a `saved`
    state of such a rule, or this plan, if there is one."""
    schedule = functools.partial(CosineAnnealingLR, T_max=batches)
    if recipe.channels_last:
        model.to(memory_format=torch.channels_last)
    make, options = CHOICES[recipe.rule], rule_options(recipe)
    if saved is not None and "cut" in saved:  # older checkpoints have none
        make = next(kind for kind in RULES.values() if kind.__name__ == saved["rule"])
        plan = plan_of(saved["cut"], Network(model, tuple(sample.shape[1:]), recipe.memory))
    return make(model, optimizer_factory(recipe), sample, schedule=schedule, plan=plan, **options)


def for_shard(recipe: Recipe, shards: int) -> Recipe:
    """The recipe of one rank, where this many ranks share every batch."""
    size = recipe.batch_size
    if size % shards or size // shards < SMALLEST_BATCH:
        raise ValueError(
            f"--batch-size is {size}, which is for all {shards} ranks that share a batch: make it a multiple of "
            f"{shards}, at least {SMALLEST_BATCH * shards}."
        )
    return replace(recipe, batch_size=size // shards)


def rule_in(recipe: Recipe, rule: Rule) -> Recipe:
    """The recipe with the name of the rule that was made, if "auto" chose it."""
    return replace(recipe, rule=next(name for name, kind in RULES.items() if type(rule) is kind))


def predict_peak(recipe: Recipe, model: nn.Sequential | None = None, plan: Plan | None = None) -> Prediction:
    """Peak memory of a training step of the recipe, run on fake tensors. A model or a plan that is passed in is not
    made again."""
    model = shapes_of(recipe) if model is None else model
    sample = sample_batch(recipe, torch.device("meta"))
    given = CHOICES[recipe.rule], model, optimizer_factory(recipe), sample, recipe.steps
    return predict(*given, plan=plan, **rule_options(recipe))


def predict_others(recipe: Recipe) -> Iterator[Prediction]:
    """The alternatives to what the rule auto has chosen, one after the other."""
    sample = sample_batch(recipe, torch.device("meta"))
    given = shapes_of(recipe), optimizer_factory(recipe), sample, recipe.steps
    yield from candidates(*given, **unbounded_options(recipe))


def shapes_of(recipe: Recipe) -> nn.Sequential:
    """The network of a recipe on the meta device, without values."""
    with torch.device("meta"):
        model = build_network(recipe)
    return model.to(memory_format=torch.channels_last) if recipe.channels_last else model


def sample_batch(recipe: Recipe, device: torch.device) -> Tensor:
    """A batch without time and without meaningful values, in the memory order that the recipe asks for."""
    return placed(recipe, torch.empty(recipe.batch_size, *recipe.in_shape, device=device), device)


def placed(recipe: Recipe, x: Tensor, device: torch.device) -> Tensor:
    """A batch on the device; images in the memory order that the recipe asks for."""
    x = x.to(device, non_blocking=True)
    if x.ndim != 4:
        return x
    if recipe.channels_last:
        return x.contiguous(memory_format=torch.channels_last)
    # A single channel is contiguous in both memory orders, and only fresh strides say which one is meant.
    return x.contiguous().flatten().view(x.shape)


def find_device(name: str) -> torch.device:
    """The device of that name, which must exist; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f'unknown device {name!r}: pass "auto", "cpu" or "cuda".') from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f'the device {name!r} is not supported: pass "auto", "cpu" or "cuda".')
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(
            f"the device {name!r} was asked for, and there are {torch.cuda.device_count()} GPUs: pass --device cpu."
        )
    return device
