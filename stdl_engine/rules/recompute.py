"""Training steps in which pieces run again in backward instead of keeping what backward needs.

The stages of a flow run forward without a graph, and only their outputs are kept, which are spikes and small. Backward
takes the stages in reverse: each one runs again, now with a graph, and its backward pass follows at once. Any stage may
also keep the graph of its first run. Gradients are the same either way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..memory.firing import Firing
from ..memory.pieces import Carried, end_of, small_form
from ..memory.recompute import Entering, Gradients, Rerun, leave
from ..memory.spikes import Kept, saving
from ..memory.tracker import mark
from ..neurons import Neuron
from ..planning.flow import Flow, Stage


class StageRuns:
    """A stage with everything needed to run it more than once.

    Its `level` says how often it runs again. 0: never, it keeps its graph. 1: once. 2, for gradients through time:
    twice, and the graph of one time step exists at a time.
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


class Recomputation:
    """A flow with a level for each stage: what steps with gradients through time and online steps share."""

    def __init__(self, flow: Flow, levels: Sequence[int], device: torch.device) -> None:
        self.flow = flow
        stages = enumerate(zip(flow.stages, levels, strict=True), 1)
        self.runs = [StageRuns(stage, number, level, device) for number, (stage, level) in stages]
        self.gradients = Gradients()
        self.wanted = [False]
        """For each map, whether its gradient reaches a parameter."""
        for run in self.runs:
            self.wanted.append(run.trains or any(self.wanted[number] for number in run.stage.reads))

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


class OnlineStep(Recomputation):
    """One time step of a subnetwork, with the past as a constant."""

    maps: list[Any]
    """The maps between stages, in their small form; None where no stage reads the map again."""
    firings: dict[int, list[Firing]]

    def forward(self, x: Kept, t: int) -> tuple[Kept, Tensor]:
        """The map for the next subnetwork in its small form, and the logits."""
        self.t, self.firings = t, {}
        carried, self.maps = [Carried(x, self.flow.readers[0])], [x]
        for run in self.runs:
            y = self._first(run, [carried[number] for number in run.stage.reads])
            small = small_form(y)
            self.maps.append(small)
            given = y if isinstance(y, Tensor) else small
            carried.append(Carried(given, self.flow.readers[run.number], small))
            del y, given
        output, logits = self.maps[self.flow.boundary], carried[-1].dense()
        self.maps = [small if self.is_read_again(number) else None for number, small in enumerate(self.maps)]
        torch.clear_autocast_cache()  # low-precision weights cached without a graph would get no gradient
        return output, logits

    def backward(self, grad: Tensor) -> None:
        """Add to the gradients of all parameters, given the gradient of the logits."""
        self.gradients.receiver((len(self.runs), self.t))(grad)
        del grad
        for run in reversed(self.runs):
            self.maps[run.number] = None
            firings = self.firings.pop(run.number, [])
            if run.level and self.wanted[run.number]:
                mark(unit=run.stage.name, phase="recompute")
                carried = [Carried(self.maps[number]) for number in run.stage.reads]
                self.replay(run, self.t, carried, firings)
            self.go_back(run, self.t)
        torch.clear_autocast_cache()

    def _first(self, run: StageRuns, inputs: list[Carried]) -> Tensor | Carried:
        if run.level:
            firings = [Firing(unread=neuron is run.stage.piece.ends_in) for neuron in run.neurons]
            self.firings[run.number] = firings
            with torch.no_grad(), run.rerun.first(self.t), run.standing_in([f.record for f in firings]):
                return run.stage.run(inputs)
        with torch.enable_grad(), saving("lean"):
            y = run.stage.run(self.inputs(run, inputs, self.t))
            self.end_graph(run, self.t, {(run.number, self.t): end_of(y)})
        return y.detach() if isinstance(y, Tensor) else y
