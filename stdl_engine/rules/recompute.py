"""Training steps in which pieces run again in backward instead of keeping what backward needs.

The stages of a flow run forward without a graph, and only their outputs are kept, which are spikes and small. Backward
takes the stages in reverse: each one runs again, now with a graph, and is gone back through at once. Any stage may also
keep the graph of its first run. Gradients are the same either way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..memory.pieces import Carried
from ..memory.recompute import Firing, Gradients, Rerun, enter, leave
from ..memory.spikes import Kept, keep, saving
from ..memory.tracker import mark
from ..neurons import Neuron
from .flow import Flow, Stage


class Entering:
    """A map where the graph of a stage begins."""

    def __init__(self, carried: Carried, receive: Callable[[Tensor], None]) -> None:
        self.carried, self.receive = carried, receive

    def dense(self) -> Tensor:
        return enter(self.carried.dense(), self.receive)


class StageRuns:
    """A stage with what it takes to run it twice.

    `level` says how often it runs again: 0 keeps its graph; 1 runs it once more; 2, where gradients go through time,
    runs it twice more and holds the graph of one time step at a time.
    """

    def __init__(self, stage: Stage, number: int, level: int, device: torch.device) -> None:
        self.stage, self.number, self.level = stage, number, level
        self.rerun = Rerun(stage.piece.modules, device)
        self.neurons = [m for m in self.rerun.modules if isinstance(m, Neuron)]
        self.trains = any(p.requires_grad for m in self.rerun.modules for p in m.parameters(recurse=False))
        self.roots: dict[int, Tensor] = {}
        """By time step, what to go back from."""

    @contextlib.contextmanager
    def standing_in(self, calls: Sequence[Callable[[Neuron, Tensor], Tensor]]) -> Iterator[None]:
        """Inside, these are called for a time step of the stage's neurons."""
        for neuron, call in zip(self.neurons, calls, strict=True):
            neuron.stand_in = call
        try:
            yield
        finally:
            for neuron in self.neurons:
                neuron.stand_in = None


class Recomputation:
    """What time steps with and without gradients through time share."""

    def __init__(self, flow: Flow, levels: Sequence[int], device: torch.device) -> None:
        self.flow = flow
        stages = enumerate(zip(flow.stages, levels, strict=True), 1)
        self.runs = [StageRuns(stage, number, level, device) for number, (stage, level) in stages]
        self.gradients = Gradients()
        self.wanted = [False]
        """Of each map, whether anyone needs its gradient."""
        for run in self.runs:
            self.wanted.append(run.trains or any(self.wanted[number] for number in run.stage.reads))

    def is_read_again(self, number: int) -> bool:
        """Whether a map is read by a stage that runs again."""
        return any(number in run.stage.reads for run in self.runs if run.level)

    def inputs(self, run: StageRuns, maps: Sequence[Carried], key: int) -> list[Carried | Entering]:
        """The maps a stage reads, each the beginning of a graph if its gradient is wanted."""
        return [
            Entering(carried, self.gradients.receiver((number, key))) if self.wanted[number] else carried
            for number, carried in zip(run.stage.reads, maps, strict=True)
        ]

    def go_back(self, run: StageRuns, key: int) -> None:
        """Backward through one run of a stage, whose graph is freed."""
        mark(unit=run.stage.unit, phase="backward")
        run.roots.pop(key).backward()
        self.gradients.settle()


class OnlineStep(Recomputation):
    """One time step of a subnetwork to which the past is a constant."""

    def forward(self, x: Kept) -> tuple[Kept, Tensor]:
        """The map for the next subnetwork in its small form, and the logits."""
        carried, self.maps = [Carried(x, self.flow.readers[0])], [x]
        for run in self.runs:
            inputs = [carried[number] for number in run.stage.reads]
            if run.level:
                run.firings = [Firing(unread=neuron is run.stage.piece.ends_in) for neuron in run.neurons]
                with torch.no_grad(), run.rerun.first(0), run.standing_in([f.record for f in run.firings]):
                    y = run.stage.run(inputs)
            else:
                with torch.enable_grad(), saving("lean"):
                    y = run.stage.run(self.inputs(run, inputs, 0))
                    self._remember(run, y)
                y = y.detach()
            small = keep(y)
            self.maps.append(small)
            carried.append(Carried(y, self.flow.readers[run.number], small))
            del y
        output, logits = self.maps[self.flow.boundary], carried[-1].dense()
        self.maps = [small if self.is_read_again(number) else None for number, small in enumerate(self.maps)]
        torch.clear_autocast_cache()  # weights in low precision that were cast without a graph would have no gradient
        return output, logits

    def backward(self, grad: Tensor) -> None:
        """Add up the gradients of all parameters from that of the logits."""
        self.gradients.receiver((len(self.runs), 0))(grad)
        del grad
        for run in reversed(self.runs):
            self.maps[run.number] = None
            if not self.gradients.has((run.number, 0)):
                continue
            if run.level:
                carried = [Carried(self.maps[number]) for number in run.stage.reads]
                replays = [firing.replay for firing in run.firings]
                with torch.enable_grad(), saving("lean"), run.rerun.again(0), run.standing_in(replays):
                    self._remember(run, run.stage.run(self.inputs(run, carried, 0)))
                del run.firings
            if 0 in run.roots:
                self.go_back(run, 0)
        torch.clear_autocast_cache()

    def _remember(self, run: StageRuns, y: Tensor) -> None:
        if y.requires_grad:
            run.roots[0] = leave([y], lambda: [self.gradients.take((run.number, 0))])


class ExactSteps(Recomputation):
    """All time steps of a network, with gradients through time.

    Forward each stage runs all its time steps before the next stage begins. Backward goes through time in segments,
    last one first, and through each segment stage by stage: the gradients between stages, and what a stage computes
    again, are those of a segment. Between segments there are the states at their beginnings and the states' gradients.
    """

    def __init__(self, flow: Flow, levels: Sequence[int], device: torch.device, segment: int | None = None) -> None:
        super().__init__(flow, levels, device)
        self.segment = segment
        self.snapshots: dict[tuple[int, int], list] = {}
        """By stage and first time step of a segment, the states before it."""

    def forward(self, frames: Sequence[Kept]) -> list[Tensor]:
        """The logits of every time step."""
        T = len(frames)
        self.starts = range(0, T, self.segment or T)
        self.maps: list[list[Kept | None]] = [list(frames), *([None] * T for _ in self.runs)]
        for run in self.runs:
            for t in range(T):
                self._first(run, t)
            self._reset(run)
            for number in run.stage.reads:
                if not self.is_read_again(number) and number not in self._read_after(run):
                    self.maps[number] = [None] * T
        torch.clear_autocast_cache()  # weights in low precision that were cast without a graph would have no gradient
        logits, self.maps[-1] = self.maps[-1], [None] * T
        return logits

    def backward(self, gradient: Callable[[int], Tensor]) -> None:
        """Add up the gradients of all parameters from those of the logits, which `gradient` gives by time step."""
        T = len(self.maps[0])
        for start in reversed(self.starts):
            steps = range(start, min(start + (self.segment or T), T))
            for t in steps:
                self.gradients.receiver((len(self.runs), t))(gradient(t))
            for run in reversed(self.runs):
                for t in steps:
                    self.maps[run.number][t] = None
                self._back(run, steps)
                torch.clear_autocast_cache()

    def _read_after(self, run: StageRuns) -> set[int]:
        return {number for later in self.runs[run.number :] for number in later.stage.reads}

    def _first(self, run: StageRuns, t: int) -> None:
        if t in self.starts and t > 0 and run.level:
            self.snapshots[run.number, t] = [[state.clone() for state in n.states()] for n in run.neurons]
        if run.level:
            with torch.no_grad(), run.rerun.first(t), _in_place(run.neurons):
                y = run.stage.run(self._carried(run, t))
        else:
            with run.rerun.first(t):
                y = self._with_graph(run, t)
        self.maps[run.number][t] = keep(y)

    def _back(self, run: StageRuns, steps: range) -> None:
        """Through one segment of a stage."""
        if run.level == 2:
            self._back_step_by_step(run, steps)
            return
        if run.level == 1:
            self._start(run, steps)
            for t in steps:
                with run.rerun.again(t):
                    self._with_graph(run, t)
            self._reset(run)
        for t in reversed(steps):
            self._back_through(run, t)

    def _back_step_by_step(self, run: StageRuns, steps: range) -> None:
        """The same with the graph of one time step at a time, from the states before each."""
        self._start(run, steps)
        before = []
        for t in steps:
            before.append([n.set_aside() for n in run.neurons])
            for n, state in zip(run.neurons, before[-1], strict=True):
                n.take_back(state)
            if t != steps[-1]:
                with torch.no_grad(), run.rerun.again(t):
                    run.stage.run(self._carried(run, t))
        for t in reversed(steps):
            for n, state in zip(run.neurons, before.pop(), strict=True):
                n.take_back(state)
            with run.rerun.again(t):
                self._with_graph(run, t)
            self._reset(run)
            self._back_through(run, t)

    def _start(self, run: StageRuns, steps: range) -> None:
        """Have the states before a segment."""
        for n, states in zip(run.neurons, self.snapshots.pop((run.number, steps[0]), [[]] * len(run.neurons)), strict=True):
            n.take_back(dict(zip(n.state_names, states, strict=False)))

    def _with_graph(self, run: StageRuns, t: int) -> Tensor:
        """A time step with a graph of its own, which begins at the inputs and at the states before it."""
        for n in run.neurons:
            for name, state in zip(n.state_names, n.states(), strict=False):
                setattr(n, name, enter(state, self.gradients.receiver((n, name, t))))
        with torch.enable_grad(), saving("lean"):
            y = run.stage.run(self.inputs(run, self._carried(run, t), t))
            ends = [(y, (run.number, t))]
            ends += [(state, (n, name, t + 1)) for n in run.neurons for name, state in zip(n.state_names, n.states(), strict=False)]
            ends = [(end, key) for end, key in ends if end.requires_grad]
            if ends:
                keys = [key for _, key in ends]
                run.roots[t] = leave([end for end, _ in ends], lambda: [self.gradients.take(key) for key in keys])
        for n in run.neurons:
            n.detach_state()
        return y.detach()

    def _back_through(self, run: StageRuns, t: int) -> None:
        if t in run.roots:
            self.go_back(run, t)

    def _carried(self, run: StageRuns, t: int) -> list[Carried]:
        return [Carried(self.maps[number][t]) for number in run.stage.reads]

    def _reset(self, run: StageRuns) -> None:
        for n in run.neurons:
            n.reset()


@contextlib.contextmanager
def _in_place(neurons: Sequence[Neuron]) -> Iterator[None]:
    """Inside, neurons write over their states, as nobody will ask for the old ones."""
    for n in neurons:
        n.online = True
    try:
        yield
    finally:
        for n in neurons:
            n.online = False
