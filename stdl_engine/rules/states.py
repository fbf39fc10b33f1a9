"""Checkpoints of a rule: all that a resumed run needs. One that does not fit is refused before anything changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..planning.plan_values import values_of

if TYPE_CHECKING:
    from .base import Rule

BY_SUBNETWORK = ("auxiliary", "optimizers", "schedulers", "scalers")
"""What is saved for each subnetwork, or for all but the last."""


def state_of(rule: Rule) -> dict[str, Any]:
    """What `Rule.state_dict` returns."""
    return {
        "rule": type(rule).__name__,
        "model": rule.model.state_dict(),
        **states_of(rule, slice(None)),
        **plan_of_rule(rule),
    }


def plan_of_rule(rule: Rule) -> dict[str, Any]:
    """The plan of a rule, for people and as values from which `plan_of` makes it again."""
    return {"plan": str(rule.plan), "cut": values_of(rule.plan)}


def states_of(rule: Rule, here: slice) -> dict[str, list[dict[str, Any]]]:
    """The states of some of its subnetworks, apart from the model's own: one list for each of `BY_SUBNETWORK`."""
    return {
        "auxiliary": [part.classifier.state_dict() for part in rule.subnetworks[here] if not part.is_last],
        "optimizers": [optimizer.state_dict() for optimizer in rule.optimizers[here]],
        "schedulers": [scheduler.state_dict() for scheduler in rule.schedulers[here]],
        "scalers": [scaler.state_dict() for scaler in rule.scalers[here]],
    }


def restore(rule: Rule, state: dict[str, Any]) -> None:
    """What `Rule.load_state_dict` does."""
    if missing := [name for name in ("rule", "plan", "model", *BY_SUBNETWORK) if name not in state]:
        raise ValueError(f"this is no checkpoint of a rule: it lacks {', '.join(missing)}.")
    if state["rule"] != type(rule).__name__:
        raise ValueError(
            f"the checkpoint was made by {state['rule']}, this is {type(rule).__name__}: build the same rule."
        )
    auxiliary = [part.classifier for part in rule.subnetworks if not part.is_last]
    if len(state["scalers"]) != len(rule.scalers):
        raise ValueError("the checkpoint was made in another precision: build the rule with the same one.")
    found = [len(state[name]) for name in ("auxiliary", "optimizers", "schedulers")]
    here = [len(auxiliary), len(rule.optimizers), len(rule.schedulers)]
    if found != here:
        raise ValueError(
            f"the checkpoint has {found[0]} auxiliary networks, {found[1]} optimizers and {found[2]} schedules, "
            f"here there are {here[0]}, {here[1]} and {here[2]}: build the rule with the same budget and schedule. "
            f"Its plan was:\n{state['plan']}"
        )
    _check_fit("model", rule.model, state["model"])
    for number, (classifier, values) in enumerate(zip(auxiliary, state["auxiliary"], strict=True), 1):
        _check_fit(f"auxiliary network {number}", classifier, values)
    sizes = [[len(group["params"]) for group in o["param_groups"]] for o in state["optimizers"]]
    if sizes != [[len(group["params"]) for group in o.param_groups] for o in rule.optimizers]:
        raise ValueError(
            f"the checkpoint's subnetworks are cut elsewhere: build the rule with the same budget. Its plan was:\n"
            f"{state['plan']}"
        )
    rule.model.load_state_dict(state["model"])
    owners: tuple[Sequence[Any], ...] = (auxiliary, rule.optimizers, rule.schedulers, rule.scalers)
    for kind, of_kind in zip(BY_SUBNETWORK, owners, strict=True):
        for owner, values in zip(of_kind, state[kind], strict=True):
            owner.load_state_dict(values)


def _check_fit(name: str, module: nn.Module, values: dict[str, Tensor]) -> None:
    """Reject values for a module with other parameters, before any is loaded."""
    here = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in values.items()}
    for key in {**here, **found}:
        if here.get(key) != found.get(key):
            raise ValueError(
                f"the checkpoint's {name} is another: {key} is {found.get(key, 'missing')} there and "
                f"{here.get(key, 'missing')} here; build the same model with the same budget."
            )
