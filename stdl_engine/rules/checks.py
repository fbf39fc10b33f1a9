"""Refuses what a rule cannot train, in one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..neurons import Neuron
from ..planning.budgets import Budget, format_bytes
from ..planning.flow import Flow
from ..planning.plan import Plan
from ..planning.subnetworks import Subnetwork


def check_tensors(model: nn.Module, sample: Tensor) -> None:
    """Reject parameters of several dtypes or devices, or on another device than the sample."""
    parameters = dict(model.named_parameters())
    for what, kinds in (
        ("device", {str(p.device): name for name, p in parameters.items()}),
        ("dtype", {str(p.dtype): name for name, p in parameters.items()}),
    ):
        if len(kinds) > 1:
            places = " and ".join(f"{kind} ({name})" for kind, name in list(kinds.items())[:2])
            raise ValueError(f"the model's parameters are of more than one {what}, {places}: use one, model.to(...).")
    device = next(iter(parameters.values())).device
    if device != sample.device and "meta" not in (device.type, sample.device.type):
        raise ValueError(f"the model is on {device} and the sample on {sample.device}: move one to the other.")


def check_subnetworks(subnetworks: Sequence[Subnetwork]) -> None:
    """Reject subnetworks that share something they would both change, and those with nothing to train."""
    owners: dict[int, int] = {}
    places: dict[int, str] = {}
    for number, subnetwork in enumerate(subnetworks, 1):
        for name, module in subnetwork.named_modules(remove_duplicate=False):
            if isinstance(module, Neuron) and places.setdefault(id(module), name) != name:
                raise ValueError(
                    f"a neuron layer is used twice, as {places[id(module)]} and {name}, and would mix their states: "
                    "give each place a neuron, or a unit, of its own."
                )
        for name, parameter in subnetwork.named_parameters():
            owner = owners.setdefault(id(parameter), number)
            if owner != number:
                raise ValueError(
                    f"the parameter {name} of subnetwork {number} is in subnetwork {owner} too, and each trains its "
                    "own: give every unit its own weights, or use BPTT or SLTT, which do not cut the network."
                )
        if not any(p.requires_grad for p in subnetwork.parameters()):
            raise ValueError(
                f"subnetwork {number} has no parameter to train, as all of them are frozen: unfreeze one "
                "(requires_grad_(True)), or use a rule that does not cut there."
            )


def check_neurons(layers: Sequence[nn.Module]) -> None:
    """Reject neurons of a rule that are none of the engine's any more."""
    for layer in layers:
        if not isinstance(layer, Neuron):
            raise ValueError(
                f"a neuron of this rule is a {type(layer).__name__} now, as restore() was called on the model: make "
                "the rule again, from units_from(model)."
            )


def check_chunk(chunk: int | str, memory: str) -> None:
    """Reject anything that is not a number of time steps that may run together."""
    if chunk == "auto":
        return
    if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
        raise ValueError(f'chunk is {chunk!r}: pass a number of time steps from 1 up, or "auto".')
    if chunk > 1 and memory == "paper":
        raise ValueError('memory "paper" is the plain form, one time step after another: pass memory="lean".')


def check_recompute(plan: Plan, flows: Sequence[Flow]) -> None:
    """Reject a plan that recomputes pieces that the network does not have, because it was made for another network."""
    stages = [(number, stage.name) for number, flow in enumerate(flows) for stage in flow.stages]
    unknown = plan.recompute.unknown(stages)
    if unknown:
        raise ValueError(
            f"the plan runs {plan.recompute.name(*unknown[0])} again, a piece that this network does not have: plan "
            "for this network, or take plan.recomputing({}), which runs nothing again."
        )


def check_promise(budget: Budget, batch_size: int, steps: int, sequence: bool, x: Tensor, T: int, dims: int) -> None:
    """Reject a batch of samples of so many dimensions that takes more memory than a budget in bytes was planned for:
    for batches of `batch_size`, for `steps` time steps, and for images or for sequences."""
    assert budget.size is not None
    planned = f"the budget of {format_bytes(budget.size, budget.binary)} was planned for "
    is_sequence = x.ndim > 1 + dims
    samples = x.shape[1] if is_sequence else len(x)
    if is_sequence and not sequence:
        raise ValueError(
            f"{planned}one image shown at every time step, and this batch is a sequence of frames, which takes "
            "more: pass sequence=True when the rule is made."
        )
    if samples > batch_size:
        raise ValueError(
            f"{planned}batches of {batch_size}, and this one has {samples} samples: make the rule with a "
            "sample of that size."
        )
    if isinstance(T, int) and steps < T:
        raise ValueError(f"{planned}{steps} time steps, and these are {T}: pass steps={T} when the rule is made.")
