"""A plan as plain values, for checkpoints: a run that continues has the same subnetworks without another search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .auxiliary import VARIANTS
from .network import Network
from .plan import Plan, Recompute, plan_of_layers


def values_of(plan: Plan) -> dict[str, Any]:
    """A plan as numbers and names."""
    recompute = plan.recompute
    return {
        "parts": [
            [part.units.start, part.units.stop, None if part.auxiliary is None else [x.index for x in part.auxiliary]]
            for part in plan.parts
        ],
        "variant": next((name for name, variant in VARIANTS.items() if variant == plan.variant), None),
        "budget": plan.budget,
        "levels": [[number, name, level] for (number, name), level in recompute.levels.items()],
        "default_level": recompute.default,
        "segment": recompute.segment,
        "chunk": plan.chunk,
        "notes": list(plan.notes),
        "byte_shares": list(plan.byte_shares),
    }


def plan_of(values: Mapping[str, Any], network: Network) -> Plan:
    """The plan that these are the values of, for the same network."""
    try:
        count, planned = len(network.units), values["parts"][-1][1]
        if planned != count:
            raise ValueError(
                f"the plan is of a network of {planned} units, and this one has {count}: build the same model."
            )
        rows = [(range(start, stop), auxiliary) for start, stop, auxiliary in values["parts"]]
        levels = {(number, name): level for number, name, level in values["levels"]}
        return replace(
            plan_of_layers(network, rows, VARIANTS[values["variant"]]),
            budget=values["budget"],
            recompute=Recompute(levels, values["default_level"], values["segment"]),
            chunk=values["chunk"],
            notes=tuple(values["notes"]),
            byte_shares=tuple(values["byte_shares"]),
        )
    except (KeyError, IndexError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"this is not what is kept of a plan ({what}): start a new run.") from error
