"""The state of a rule in parts: each stage holds its own, and together they are the checkpoint of one process."""

from __future__ import annotations

from typing import Any

from ..rules import Rule
from ..rules.states import BY_SUBNETWORK, plan_of_rule, states_of


class WholeState:
    """A rule of which this stage trains the subnetworks `here`, and the state of the whole rule."""

    def __init__(self, rule: Rule, here: range) -> None:
        self.rule, self.here = rule, here
        self.released = False

    def release_others(self) -> None:
        """Free the weights and optimizers of the subnetworks that other stages train."""
        if self.released or len(self.here) == len(self.rule.subnetworks):
            return
        self.released = True
        for number, subnetwork in enumerate(self.rule.subnetworks):
            if number not in self.here:
                for tensor in (*subnetwork.parameters(), *subnetwork.buffers()):
                    tensor.data = tensor.data.new_empty(0)
                self.rule.optimizers[number].state.clear()

    def own_state(self) -> dict[str, Any]:
        """The state that only this stage has."""
        rule, here = self.rule, slice(self.here.start, self.here.stop)
        mine = {id(t) for part in rule.subnetworks[here] for t in (*part.parameters(), *part.buffers())}
        model = {
            name: tensor.detach().cpu()
            for name, tensor in rule.model.state_dict(keep_vars=True).items()
            if id(tensor) in mine
        }
        return {"model": model, **states_of(rule, here)}

    def joined(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The state of the whole rule, from those of the stages in order; the same as `Rule.state_dict` returns."""
        model = {name: tensor for part in parts for name, tensor in part["model"].items()}
        state: dict[str, Any] = {"rule": type(self.rule).__name__, **plan_of_rule(self.rule)}
        state["model"] = {name: model[name] for name in self.rule.model.state_dict()}
        for kind in BY_SUBNETWORK:
            state[kind] = [value for part in parts for value in part[kind]]
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Restore the whole state; the parts of other stages are freed by `release_others`."""
        if self.released:
            raise ValueError("this rank has given up what other stages train: load a state before the first step.")
        self.rule.load_state_dict(state)
