"""What all learning rules share: subnetworks, one optimizer each, a training step, prediction, and checkpoints."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..memory.chunks import in_chunks
from ..memory.layers import computing_again
from ..memory.norms import lean_norms
from ..memory.spikes import Kept, saving
from ..memory.still import StillImage, showing
from ..memory.strided import taking_pixels_first
from ..memory.tracker import mark
from ..neurons import Neuron, borrowed, reset_states
from ..planning.budgets import Budget, parse_budget
from ..planning.chunks import chunk_within
from ..planning.fake import fake_copy
from ..planning.flow import Flow
from ..planning.levels import recompute_within
from ..planning.network import Network, check_model
from ..planning.plan import Plan, Recompute, plan_of_layers
from ..planning.planner import MakeOptimizer
from ..planning.subnetworks import Subnetwork, build
from ..stream import Learn, subnetwork_major, time_major
from .batch import check_batch, check_sample, split_frames
from .checks import check_chunk, check_neurons, check_promise, check_recompute, check_subnetworks, check_tensors
from .finite import GuardedSteps
from .inference import mean_logits
from .lesson import Before, Lesson
from .states import restore, state_of
from .still import first_convolution, still_image

MEMORY = ("lean", "paper")
ORDERS = ("subnetwork", "time")
RECOMPUTE = {"none": 0, "auto": 0, "all": 1, "twice": 2}
"""How often pieces run again in backward, before a budget is considered."""
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype that autocast computes in; None is no autocast."""


@dataclass(frozen=True)
class StepResult:
    """The result of one training step: tensors on the model's device, detached from the graph.

    Attributes:
        loss: of the last subnetwork, the network's own classifier.
        losses: of every subnetwork, in order; each is the sum over time steps of cross-entropy / T.
        logits: the network's prediction, the mean over time steps, [batch, classes].
    """

    loss: Tensor
    losses: list[Tensor]
    logits: Tensor


class Exchange(Protocol):
    """Combines the gradients of several ranks, and makes sure that `Rule.update` is called for every subnetwork."""

    def begin(self, subnetwork: Subnetwork) -> None:
        """Called when the gradients of a subnetwork are complete."""

    def end(self) -> None:
        """Called when those of all subnetworks are complete; returns when all optimizers have stepped."""

    def forget(self) -> None:
        """Give up pending exchanges after an error."""


class Rule:
    """A way to train a model: `step` learns from one batch, `predict` runs the plain network.

    A rule borrows the model: between its calls every layer is in the mode it was in before, so that several rules and
    your own loops can take turns on one model.

    Args:
        model: an `nn.Sequential` of units ending in a `Head`.
        optimizer: makes an optimizer from parameters, for example `functools.partial(torch.optim.SGD, lr=0.1,
            momentum=0.9)`; called once for each subnetwork.
        sample: one batch of input without time, [B, ...]; only its shape, dtype, device and memory order are read.
        schedule: makes a learning-rate scheduler from an optimizer; `advance_schedule` steps all of them.
        memory: "lean" keeps spikes as bits and one subnetwork alive at a time; "paper" is the plain form. Results are
            the same within rounding, as lean memory has kernels of its own for batch norms, and with channels_last
            for convolutions.
        order: the outer loop, "subnetwork" or "time"; the default is "subnetwork" for lean and "time" for paper.
        precision: "fp32"; or autocast in "bf16" or "fp16", the latter with a gradient scaler for each subnetwork.
        budget: bytes that a training step may take at its peak ("2GiB", 2e9). Batches for which it was not planned are
            refused.
        steps: time steps for which a budget in bytes is planned.
        recompute: which pieces of the network run again in backward instead of being kept: "none"; "all", once each;
            "twice", through time, to hold one time step at a time; or "auto", as few as the budget requires. Gradients
            are the same to the last bit.
        sequence: whether batches will be T different frames, [T, B, ...]; a budget in bytes counts them.
        chunk: how many time steps of a subnetwork run together, which is faster and takes more memory; "auto" is as
            many as a budget in bytes allows, or without one as many as take at most a quarter more memory than one by
            one. Gradients are the same within rounding.
        plan: how the network is cut, what is recomputed and how many steps run together, if that is known already.

    A subclass defines how the network is cut (`cut`) and may define how a subnetwork learns from one time step
    (`learn`).
    """

    online = True
    """Whether the gradient treats the past as a constant."""
    _lesson: Lesson
    _before: Before
    """Of the batch that is being learned from; there only during a training step."""

    exchange: Exchange | None = None
    """Combines the gradients of a subnetwork before its optimizer steps, where several ranks share a batch."""

    def __init__(
        self,
        model: nn.Sequential,
        optimizer: MakeOptimizer,
        sample: Tensor,
        *,
        schedule: Callable[[Optimizer], LRScheduler] | None = None,
        memory: str = "lean",
        order: str | None = None,
        precision: str = "fp32",
        budget: float | str | Budget | None = None,
        steps: int = 4,
        recompute: str = "auto",
        sequence: bool = False,
        chunk: int | str = 1,
        plan: Plan | None = None,
    ) -> None:
        if memory not in MEMORY:
            raise ValueError(f"unknown memory {memory!r}: pass one of {', '.join(MEMORY)}.")
        if recompute not in RECOMPUTE:
            raise ValueError(f"unknown recompute {recompute!r}: pass one of {', '.join(RECOMPUTE)}.")
        if memory == "paper" and recompute not in ("none", "auto"):
            raise ValueError('memory "paper" is the plain form, which recomputes nothing: pass memory="lean".')
        check_chunk(chunk, memory)
        self.model, self.memory, self.sequence, self.chunk = model, memory, sequence, chunk
        self.budget, self.steps, self.recompute = self.read_budget(budget), steps, recompute
        self.keeps_bytes = self.budget is not None and self.budget.size is not None and plan is None
        self.order = order or ("subnetwork" if memory == "lean" else "time")
        if self.order not in ORDERS:
            raise ValueError(f"unknown order {order!r}: pass one of {', '.join(ORDERS)}.")
        if precision not in PRECISIONS:
            raise ValueError(f"unknown precision {precision!r}: pass one of {', '.join(PRECISIONS)}.")
        check_model(model)
        check_sample(sample, model)
        check_tensors(model, sample)
        self.precision, self.device = precision, sample.device
        self.network = Network(model, tuple(sample.shape[1:]), memory)
        self.make_optimizer, self.batch_size = optimizer, len(sample)
        self.sample = torch.empty_strided(sample.shape, sample.stride(), dtype=sample.dtype, device="meta")
        with self.autocast("cpu"):  # plans are made on the CPU, whatever the device
            self.plan = self.with_chunk(self.make_plan()) if plan is None else plan
        if plan is not None and RECOMPUTE[recompute]:
            self.plan = replace(self.plan, recompute=self.recompute_all())
        if plan is not None and isinstance(chunk, int) and chunk > 1:
            self.plan = replace(self.plan, chunk=chunk)
        if self.plan.chunk > 1 and not self.takes_chunks(self.plan):
            raise ValueError(
                "pieces that run again through time take one time step after another: pass chunk=1, or "
                'recompute="none".'
            )
        self._assemble()
        check_recompute(self.plan, [self.flow(part) for part in self.subnetworks])
        self.schedulers = [schedule(o) for o in self.optimizers] if schedule else []
        scaled = precision == "fp16"
        self.scalers = [GradScaler(self.device.type) for _ in self.optimizers] if scaled else []

    def _assemble(self) -> None:
        """The subnetworks of the plan and their optimizers."""
        self.subnetworks = self.build_subnetworks()
        check_subnetworks(self.subnetworks)
        self._neurons = [module for module in self.modules() if isinstance(module, Neuron)]
        trained = ([p for p in part.parameters() if p.requires_grad] for part in self.subnetworks)
        self.optimizers = [self.make_optimizer(parameters) for parameters in trained]
        self._guard = GuardedSteps()

    def trial(self, network: Network, plan: Plan) -> Self:
        """The same rule on a copy of the network that is cut by another plan: what the planner measures."""
        twin = copy.copy(self)
        twin.network, twin.model, twin.plan = network, network.model, plan
        twin._assemble()
        twin.schedulers, twin.scalers, twin.exchange = [], [], None
        return twin

    def without_numbers(self) -> Self:
        """The same rule on a copy of the network whose tensors are fake; inside `faking()`."""
        return self.trial(Network.sharing(self.network, fake_copy(self.model)), self.plan)

    def read_budget(self, budget: float | str | Budget | None) -> Budget | None:
        """The budget as this rule understands it."""
        if budget is None:
            return None
        budget = parse_budget(budget)
        if budget.size is None:
            raise ValueError(f'the budget of {type(self).__name__} is in bytes: write for example "2GiB" or 2e9.')
        return budget

    def cut(self) -> Plan:
        """How the network is cut; by default not at all."""
        return plan_of_layers(self.network, [(range(len(self.network.units)), None)])

    def make_plan(self) -> Plan:
        """How the network is cut, and what is recomputed."""
        plan = replace(self.cut(), recompute=self.recompute_all())
        if self.budget is None or self.budget.size is None:
            return plan
        choose = self.recompute == "auto" and self.memory == "lean"
        return recompute_within(
            self.network, plan, self.budget.size, self.trial, self.sample, self.steps, sequence=self.sequence,
            binary=self.budget.binary, choose=choose,
        )  # fmt: skip

    def with_chunk(self, plan: Plan) -> Plan:
        """The plan with as many time steps together as were asked for."""
        budget = None if self.budget is None else self.budget.size
        if self.chunk == 1 or (self.chunk == "auto" and (self.steps == 1 or not self.takes_chunks(plan))):
            return plan
        if isinstance(self.chunk, int) and (budget is None or not self.takes_chunks(plan)):
            return replace(plan, chunk=self.chunk)
        return chunk_within(
            self.network, plan, self.chunk, budget, self.trial, self.sample, self.steps, sequence=self.sequence,
            binary=self.budget is not None and self.budget.binary,
        )  # fmt: skip

    def takes_chunks(self, plan: Plan) -> bool:
        """Whether time steps can run together: not in the plain form, and not where pieces run again through time."""
        return self.memory == "lean" and (self.online or not plan.recompute.any)

    def recompute_all(self) -> Recompute:
        """The level that was asked for, the same for every stage."""
        level = RECOMPUTE[self.recompute]
        through_time = level and not self.online
        segment = self.network.segment_for(self.steps) if through_time else None
        return Recompute(default=level if through_time else min(level, 1), segment=segment)

    def flow(self, subnetwork: Subnetwork) -> Flow:
        """A subnetwork as a sequence of its pieces."""
        return Flow(subnetwork, lean=self.memory == "lean")

    def build_subnetworks(self) -> list[Subnetwork]:
        """The subnetworks of the plan, auxiliary networks included."""
        return build(self.network, self.plan)

    def __repr__(self) -> str:
        settings = f"{self.memory} memory, {self.precision}, batch {self.batch_size}, order {self.order!r}"
        return f"{type(self).__name__} ({settings}):\n{self.plan}"

    def modules(self) -> Iterator[nn.Module]:
        """Every module that takes part in training."""
        for subnetwork in self.subnetworks:
            yield from subnetwork.modules()

    def step(self, x: Tensor, y: Tensor, T: int) -> StepResult:
        """Train on one batch: x is [B, ...], shown T times, or a sequence [T, B, ...]; y the labels, [B]. One
        optimizer step.

        A step that raises leaves every subnetwork whose optimizer has not stepped as it was.
        """
        if self.keeps_bytes:
            self.check_promise(x, T)
        frames = split_frames(x, T, self.network.in_shape)
        check_batch(x, y, len(frames[0]), self.network.head.num_classes, self.modules())
        losses, logits = self.train_on(self.subnetworks, in_chunks(frames, self.plan.chunk), y, T)
        assert logits is not None, "the last subnetwork is among all of them"
        return StepResult(losses[-1], losses, logits)

    def train_on(
        self, subnetworks: Sequence[Subnetwork], frames: Iterable[Kept], y: Tensor, T: int, learn: Learn | None = None
    ) -> tuple[list[Tensor], Tensor | None]:
        """Train some consecutive subnetworks on the input of the first of them, chunk by chunk. Returns their losses,
        and the network's mean logits if its last subnetwork is among them. `learn` is called instead of the rule's
        own."""
        run = time_major if self.order == "time" else subnetwork_major
        with self.started(y, T, still=still_image(frames), trained=subnetworks), self.autocast():
            run(subnetworks, frames, learn or self.learn, self.finish)
            if self.exchange is not None:
                self.exchange.end()
            return self._lesson.results(subnetworks)

    def check_promise(self, x: Tensor, T: int) -> None:
        """Refuse a batch that takes more memory than the budget was planned for."""
        assert self.budget is not None
        check_promise(self.budget, self.batch_size, self.steps, self.sequence, x, T, len(self.network.in_shape))

    @contextlib.contextmanager
    def started(
        self, y: Tensor, T: int, still: Tensor | None = None, trained: Sequence[Subnetwork] | None = None
    ) -> Iterator[None]:
        """A context in which subnetworks may `learn` and `finish` one batch of T time steps; the model is borrowed.
        `still` is the network's input, if it is the same at every time step; `trained` are the subnetworks that will
        learn, by default all of them."""
        self._guard.check()
        check_neurons(self._neurons)
        flows = {part: self.flow(part) for part in self.subnetworks}
        self._lesson = lesson = Lesson(y, T, flows, self.plan.recompute)
        self._before = Before(self.subnetworks if trained is None else trained)
        modules = list(self.modules())
        samples = len(y) if self.plan.chunk > 1 else None
        borrowing = borrowed(modules, training=True, online=self.online, memory=self.memory, samples=samples)
        norms = lean_norms(modules, samples) if self.memory == "lean" else contextlib.nullcontext()
        again = computing_again(lesson.modules_run_again() if self.online else ())
        # What convolves a still image is found while its batch norm is still a plain one.
        with borrowing, self._showing(still, T) as lesson.still, norms, taking_pixels_first(modules), again:
            try:
                yield
            except BaseException:
                self._before.restore_buffers()
                raise
            finally:
                self._before.restore_gradients()
                torch.clear_autocast_cache()
                del self._lesson, self._before

    def _showing(self, image: Tensor | None, T: int) -> contextlib.AbstractContextManager[StillImage | None]:
        """The context in which the network's input is convolved once, if it is the same at every time step and this
        takes no more memory. It would where other subnetworks run between the time steps of the first one. With an
        online rule it is also not done where stages of the first one run again in backward, because what a mixture of
        those takes is added up from stages that hold nothing between time steps. Through time a stage runs all its time
        steps at once, and forgets the map with its states."""
        first, unit = self.subnetworks[0], self.model[0]
        is_alone = self.order == "subnetwork" or len(self.subnetworks) == 1
        is_free = is_alone and not (self.online and self._lesson.runs_again(first))
        if image is None or T == 1 or self.memory != "lean" or first.units[0] is not unit or not is_free:
            return contextlib.nullcontext()
        return showing(image, first_convolution(unit))

    def autocast(self, device: str | None = None) -> contextlib.AbstractContextManager:
        """The context that computes in this rule's precision, on the model's kind of device or on another."""
        dtype = PRECISIONS[self.precision]
        return contextlib.nullcontext() if dtype is None else torch.autocast(device or self.device.type, dtype)

    def learn(self, subnetwork: Subnetwork, t: int, x: Kept) -> Kept:
        """One chunk of time of one subnetwork: forward, loss, and backward, which adds to the gradients."""
        mark(step=t, subnetwork=self.subnetworks.index(subnetwork), phase="forward")
        output, loss = self.forward(subnetwork, x)
        self.backward(subnetwork, loss)
        return output

    def forward(self, subnetwork: Subnetwork, x: Kept) -> tuple[Kept, Tensor]:
        """Output of a subnetwork, detached and in its small form if lean, and its loss for this chunk."""
        with saving(self.memory):
            output, logits = self._lesson.flows[subnetwork].run(x)
        loss = self._lesson.loss(logits)
        self._lesson.note(subnetwork, logits, loss)
        return output, loss

    def backward(self, subnetwork: Subnetwork, loss: Tensor) -> None:
        """Add the gradient of a loss to a subnetwork's parameters, scaled if the precision requires it."""
        mark(phase="backward")
        if self.scalers:
            loss = self.scalers[self.subnetworks.index(subnetwork)].scale(loss)
        loss.backward()

    def finish(self, subnetwork: Subnetwork) -> None:
        """After all time steps of a subnetwork: its optimizer steps, its gradients and states are freed."""
        reset_states(subnetwork)
        if self._lesson.still is not None:
            self._lesson.still.forget()  # only the first subnetwork sees the image, and it is the first to finish
        if self.exchange is None:
            self.update(subnetwork)
        else:
            self.exchange.begin(subnetwork)

    def update(self, subnetwork: Subnetwork) -> None:
        """Step the optimizer of a subnetwork and free its gradients."""
        index = self.subnetworks.index(subnetwork)
        mark(subnetwork=index, unit=None, phase="optimizer")
        optimizer = self.optimizers[index]
        if self.scalers:
            self.scalers[index].step(optimizer)  # skips the step if a gradient has overflowed
            self.scalers[index].update()
        else:
            self._guard.step(optimizer, f"subnetwork {index + 1}", self.named_parameters(index))
        self._before.finished(subnetwork)
        optimizer.zero_grad(set_to_none=True)
        torch.clear_autocast_cache()  # a surrounding autocast context would keep the old weights in low precision

    def named_parameters(self, index: int) -> dict[str, nn.Parameter]:
        """The parameters that subnetwork `index` trains: the model's, by their names there, then the auxiliary ones."""
        own = {id(p): name for name, p in self.model.named_parameters()}
        parameters = (pair for pair in self.subnetworks[index].named_parameters() if pair[1].requires_grad)
        return {own.get(id(p), name.replace("classifier", "auxiliary", 1)): p for name, p in parameters}

    def predict(self, x: Tensor, T: int) -> Tensor:
        """Logits of the plain network in evaluation mode, the mean over T time steps; auxiliary networks take no
        part.
        """
        check_neurons(self._neurons)
        frames = split_frames(x, T, self.network.in_shape)
        with self.autocast():
            return mean_logits(self.model, frames, chunk=self.plan.chunk)

    def advance_schedule(self) -> None:
        """Step the learning-rate schedules of all subnetworks: once per epoch or per batch, as they were made for."""
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs: model, auxiliary networks, optimizers, schedules."""
        return state_of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. The rule, the model and the partition must be the same; otherwise nothing
        changes.
        """
        restore(self, state)
