"""Backpropagation through time in which pieces run again: exact gradients, in as much memory as the levels allow.

Forward, each stage runs all its time steps before the next stage begins. Backward goes through time in segments, the
last one first, and through each segment stage by stage: gradients between stages, and what a stage recomputes, exist
for one segment only. Each segment passes the gradients of the states at its beginning to the segment before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..memory.firing import Chain, Firing
from ..memory.layers import SpikeConv2d
from ..memory.pieces import Carried, end_of, small_form
from ..memory.recompute import Entering, Gradients, Rerun, enter, leave
from ..memory.spikes import Kept, saving
from ..memory.tracker import mark
from ..neurons import Neuron
from ..planning.flow import Flow, Stage

States = list[dict[str, Tensor]]
"""The state of each neuron layer of a stage, by name; empty before the first time step."""


class StageRuns:
    """A stage with everything needed to run it more than once.

    Its `level` says how often it runs again. 0: never, it keeps its graph. 1: once. 2: twice, and the graph of one time
    step exists at a time.
    """

    def __init__(self, stage: Stage, number: int, level: int, device: torch.device) -> None:
        self.stage, self.number, self.level = stage, number, level
        self.rerun = Rerun(stage.piece.modules, device)
        self.neurons = [m for m in self.rerun.modules if isinstance(m, Neuron)]
        self.trains = any(p.requires_grad for m in self.rerun.modules for p in m.parameters(recurse=False))
        self.roots: dict[int, Tensor] = {}
        """For each time step, where the graph of a run ends."""

    @contextlib.contextmanager
    def standing_in(self, calls: Sequence[Callable[[Neuron, Tensor], Tensor]]) -> Iterator[None]:
        """Inside, these are called at each time step of the stage's neurons."""
        for neuron, call in zip(self.neurons, calls, strict=True):
            neuron.stand_in = call
        try:
            yield
        finally:
            for neuron in self.neurons:
                neuron.stand_in = None


class ExactSteps:
    """All time steps of a network, with gradients through time."""

    def __init__(self, flow: Flow, levels: Sequence[int], device: torch.device, segment: int | None = None) -> None:
        """`segment` is how many time steps backward takes together; by default all."""
        self.flow, self.segment = flow, segment
        stages = enumerate(zip(flow.stages, levels, strict=True), 1)
        self.runs = [StageRuns(stage, number, level, device) for number, (stage, level) in stages]
        self.gradients = Gradients()
        self.wanted = [False]
        """For each map, whether its gradient reaches a parameter."""
        for run in self.runs:
            self.wanted.append(run.trains or any(self.wanted[number] for number in run.stage.reads))
        self.snapshots: dict[tuple[int, int], States] = {}
        """The states before a segment, by stage and by the segment's first time step."""

    def forward(self, frames: Sequence[Kept]) -> list[Tensor]:
        """The logits of every time step."""
        T = len(frames)
        self.segments = [range(T)[first : first + (self.segment or T)] for first in range(0, T, self.segment or T)]
        self.maps: list[list[Any]] = [list(frames), *([None] * T for _ in self.runs)]
        if draws_random_numbers(self.flow):  # in the order in which they are drawn without recomputation
            for t in range(T):
                for run in self.runs:
                    self._first(run, t)
        else:
            for run in self.runs:
                for t in range(T):
                    self._first(run, t)
                self._forget(run)
        for run in self.runs:
            self._forget(run)
        torch.clear_autocast_cache()  # low-precision weights cached without a graph would get no gradient
        logits = self.maps[-1]
        self.maps = [steps if self.is_read_again(number) else [None] * T for number, steps in enumerate(self.maps)]
        return logits

    def backward(self, gradient: Callable[[int], Tensor]) -> None:
        """Add to the gradients of all parameters; `gradient` returns that of the logits of a time step."""
        for steps in reversed(self.segments):
            for t in steps:
                self.gradients.receiver((len(self.runs), t))(gradient(t))
            for run in reversed(self.runs):
                for t in steps:
                    self.maps[run.number][t] = None
                if self.wanted[run.number]:
                    go_back = self._back_step_by_step if run.level == 2 else self._back
                    go_back(run, steps)
                torch.clear_autocast_cache()

    def _first(self, run: StageRuns, t: int) -> None:
        mark(step=t, phase="forward")
        if run.level and t and any(t == steps[0] for steps in self.segments):
            self.snapshots[run.number, t] = [
                {name: state.clone() for name, state in states.items()} for states in _states(run.neurons)
            ]
        if run.level:
            with run.rerun.first(t), torch.no_grad(), _in_place(run.neurons):
                y = run.stage.run(self._carried(run, t))
        else:
            y = self._with_graph(run, t)
        self.maps[run.number][t] = small_form(y)

    def _back(self, run: StageRuns, steps: range) -> None:
        """Backward through one segment of a stage, with graphs that were kept or are made now."""
        if run.level:
            _set_states(run.neurons, self._states_before(run, steps[0]))
            for t in steps:
                mark(step=t, phase="recompute")
                with run.rerun.again(t):
                    self._with_graph(run, t)
            self._forget(run)
        for t in reversed(steps):
            self.go_back(run, t)

    def _back_step_by_step(self, run: StageRuns, steps: range) -> None:
        """The same with the graph of one time step at a time. A first run records the time steps of the neurons, whose
        graphs are a membrane each. Where the stage ends in a neuron, the gradient goes back through all its time steps
        before anything else runs again."""
        firings = self._record(run, steps)
        for t in reversed(steps):
            mark(step=t, unit=run.stage.name, phase="backward")
            for fired in (fired for firing in firings[t] if firing.unread for fired in firing.fired):
                fired.back_ahead(self.gradients.take((run.number, t)))
        for t in reversed(steps):
            mark(step=t, phase="recompute")
            self.replay(run, t, self._carried(run, t), firings.pop(t))
            self.go_back(run, t)
        self._forget(run)

    def _record(self, run: StageRuns, steps: range) -> dict[int, list[Firing]]:
        """Time steps of the stage's neurons, by running the stage without a graph of its own."""
        chains = [Chain(self.gradients, neuron, steps) for neuron in run.neurons]
        ends_in = run.stage.piece.ends_in
        firings = {t: [Firing(c, unread=c.neuron is ends_in) for c in chains] for t in steps}
        _set_states(run.neurons, self._states_before(run, steps[0]))
        for t in steps if run.neurons else ():
            mark(step=t, phase="recompute")
            recording = run.standing_in([firing.record for firing in firings[t]])
            with torch.no_grad(), saving("lean"), run.rerun.again(t, keep=True), recording:
                run.stage.run(self._carried(run, t))
        self._forget(run)
        torch.clear_autocast_cache()
        return firings

    def is_read_again(self, number: int) -> bool:
        """Whether a map is read by a stage that runs again."""
        return any(number in run.stage.reads for run in self.runs if run.level)

    def inputs(self, run: StageRuns, maps: Sequence[Carried], t: int) -> list[Carried]:
        """The maps that a stage reads; those whose gradient is needed are leaves of a new graph."""
        return [
            Entering(carried, self.gradients.receiver((number, t))) if self.wanted[number] else carried
            for number, carried in zip(run.stage.reads, maps, strict=True)
        ]

    def end_graph(self, run: StageRuns, t: int, ends: dict[object, Tensor]) -> None:
        """Let the graph of a run end in these maps, with the keys under which their gradients will arrive."""
        keys = [key for key, end in ends.items() if end.requires_grad]
        if keys:
            gradients = self.gradients
            run.roots[t] = leave([ends[key] for key in keys], lambda: [gradients.take(key) for key in keys])

    def replay(self, run: StageRuns, t: int, maps: Sequence[Carried], firings: Sequence[Firing]) -> None:
        """Run a stage again with a graph, its neurons replayed from what was recorded."""
        replays = [firing.replay for firing in firings]
        with torch.enable_grad(), saving("lean"), run.rerun.again(t), run.standing_in(replays):
            ends: dict[object, Tensor] = {(run.number, t): end_of(run.stage.run(self.inputs(run, maps, t)))}
            ends |= {firing: firing.tick for firing in firings if firing.tick is not None}
            self.end_graph(run, t, ends)

    def go_back(self, run: StageRuns, t: int) -> None:
        """Backward through one run of a stage, and free its graph."""
        mark(step=t, unit=run.stage.name, phase="backward")
        root = run.roots.pop(t, None)
        if root is not None:
            root.backward()
            self.gradients.settle()

    def _with_graph(self, run: StageRuns, t: int) -> Tensor | Carried:
        """A time step with its own graph, which begins at its inputs and at the states before it."""
        for neuron, states in zip(run.neurons, _states(run.neurons), strict=True):
            for name, state in states.items():
                setattr(neuron, name, enter(state, self.gradients.receiver((neuron, name, t))))
        with torch.enable_grad(), saving("lean"):
            y = run.stage.run(self.inputs(run, self._carried(run, t), t))
            ends: dict[object, Tensor] = {(run.number, t): end_of(y)}
            for neuron, states in zip(run.neurons, _states(run.neurons), strict=True):
                ends |= {(neuron, name, t + 1): state for name, state in states.items()}
            self.end_graph(run, t, ends)
        for neuron in run.neurons:
            neuron.detach_state()
        return y

    def _states_before(self, run: StageRuns, t: int) -> States:
        return self.snapshots.pop((run.number, t), [{} for _ in run.neurons])

    def _carried(self, run: StageRuns, t: int) -> list[Carried]:
        return [Carried(self.maps[number][t]) for number in run.stage.reads]

    def _forget(self, run: StageRuns) -> None:
        """The states of a stage, and the map of a still image if it convolves one."""
        for neuron in run.neurons:
            neuron.reset()
        for still in (m.still for m in run.rerun.modules if isinstance(m, SpikeConv2d) and m.still is not None):
            still.forget()


def draws_random_numbers(flow: Flow) -> bool:
    """Whether this is a PyTorch layer that draws random numbers in training."""
    layers = (layer for stage in flow.stages for module in stage.piece.modules for layer in module.modules())
    return any(isinstance(layer, nn.modules.dropout._DropoutNd | nn.RReLU) for layer in layers)


def _states(neurons: Iterable[Neuron]) -> States:
    return [dict(zip(neuron.state_names, neuron.states(), strict=False)) for neuron in neurons]


def _set_states(neurons: Iterable[Neuron], states: States) -> None:
    for neuron, own in zip(neurons, states, strict=True):
        neuron.take_back(own)


@contextlib.contextmanager
def _in_place(neurons: Sequence[Neuron]) -> Iterator[None]:
    """Inside, neurons overwrite their states, because the old ones are not needed again."""
    for neuron in neurons:
        neuron.online = True
    try:
        yield
    finally:
        for neuron in neurons:
            neuron.online = False
