"""Small networks, batches and rules, and exact comparison of all that training changes."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from stdl_engine.models import build_model
from stdl_engine.planning.network import Network
from stdl_engine.planning.plan import Plan, plan_of_layers
from stdl_engine.planning.published import PUBLISHED
from stdl_engine.rules import RULES, STDL, Rule, StepResult

sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
adamw = functools.partial(torch.optim.AdamW, lr=1e-3, weight_decay=5e-4)

ROWS = {**PUBLISHED, "vgg11": ((range(0, 2), (3, 5)), (range(2, 5), (7,)), (range(5, 8), None))}
"""A partition for each model, the same whatever the memory."""


def small(name: str = "resnet18", seed: int = 1, **options) -> nn.Sequential:
    torch.manual_seed(seed)
    return build_model(name, **{"width": 0.0625, "decay": 0.5, **options})


def batch(name: str = "resnet18", count: int = 4, frames: int = 0, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Images and labels; with `frames` a sequence. As small as the model's pools allow."""
    draw = torch.Generator().manual_seed(seed)
    side = 16 if name.startswith(("vgg", "sew")) else 8
    shape = (frames, count, 3, side, side) if frames else (count, 3, side, side)
    return torch.randn(shape, generator=draw), torch.randint(10, (count,), generator=draw)


def plan_for(model: nn.Sequential, sample: Tensor, memory: str = "lean") -> Plan:
    return plan_of_layers(Network(model, tuple(sample.shape[1:]), memory), ROWS[model.architecture])


def make(name: str, model: nn.Sequential, sample: Tensor, optimizer=sgd, *, seed: int = 2, **options) -> Rule:
    """A rule by name, auxiliary networks drawn from `seed`; STDL with a partition that does not depend on memory."""
    if name == "even":
        options.setdefault("K", 3)
    if RULES[name] is STDL and not {"budget", "plan"} & options.keys():
        options["plan"] = plan_for(model, sample, options.get("memory", "lean"))
    torch.manual_seed(seed)
    return RULES[name](model, optimizer, sample, **options)


def train(rule: Rule, batches: Iterable[tuple[Tensor, Tensor]], T: int = 2) -> list[StepResult]:
    return [rule.step(x, y, T) for x, y in batches]


def batches(count: int, name: str = "resnet18", **options) -> list[tuple[Tensor, Tensor]]:
    return [batch(name, seed=100 + number, **options) for number in range(count)]


def numbers(rule: Rule) -> dict[str, Tensor]:
    """A copy of all that training changes in the network and its auxiliary networks, statistics included."""
    found = {f"model.{key}": value for key, value in rule.model.state_dict().items()}
    for index, part in enumerate(rule.subnetworks[:-1]):
        found |= {f"auxiliary.{index}.{key}": value for key, value in part.classifier.state_dict().items()}
    return {key: value.clone() for key, value in found.items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [key for key in a if not torch.equal(a[key], b[key])] == []


def assert_same_results(a: list[StepResult], b: list[StepResult]) -> None:
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one.logits, other.logits)
        assert [float(loss) for loss in one.losses] == [float(loss) for loss in other.losses]


def unchanged(before: dict[str, Tensor], after: dict[str, Tensor]) -> list[str]:
    return [key for key in before if torch.equal(before[key], after[key])]


class Recorder(torch.optim.SGD):
    """Notes the gradients it is given and changes nothing."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, lr=0.0)
        self.seen: dict[nn.Parameter, Tensor] = {}

    def step(self, closure=None) -> None:
        for group in self.param_groups:
            self.seen |= {p: p.grad.clone() for p in group["params"] if p.grad is not None}


def gradients(rule: Rule, x: Tensor, y: Tensor, T: int) -> dict[str, Tensor]:
    """What a step hands to the optimizers, by parameter name; the rule must be made with `Recorder`."""
    rule.step(x, y, T)
    seen = {p: grad for optimizer in rule.optimizers for p, grad in optimizer.seen.items()}
    names = {p: f"model.{name}" for name, p in rule.model.named_parameters()}
    for index, part in enumerate(rule.subnetworks[:-1]):
        names |= {p: f"auxiliary.{index}.{name}" for name, p in part.classifier.named_parameters()}
    return {names[p]: grad for p, grad in seen.items()}
