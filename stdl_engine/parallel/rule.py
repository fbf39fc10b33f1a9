"""A learning rule on several ranks: subnetworks as stages of a pipeline, and batches spread over ranks.

A stage receives the input of its first subnetwork and the labels, learns, sends the output of its last subnetwork on,
and gets nothing back. While the next stage learns from that batch, this one learns from the next batch. Subnetworks
exchange no gradient, so no weight is ever stale, and stages compute what one process computes, to the last bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..memory.chunks import in_chunks
from ..memory.spikes import Kept, keep, restore
from ..planning.subnetworks import Subnetwork
from ..rules import Rule, StepResult
from ..rules.batch import check_batch, split_frames
from ..rules.inference import evaluating, measured, over_time
from .forecast import AHEAD, Shards, stages_of
from .gradients import SharedGradients, make_equal
from .links import Message, Traffic
from .norm import check_norms, synchronised
from .peers import GroupPeers
from .ranks import Ranks
from .stage import train_stage, training_message, with_labels
from .states import WholeState
from .wire import Wire, decode, decoded, encode


@dataclass(frozen=True)
class LabelledResult(StepResult):
    """The result of one training step on the last stage, with the labels, which that stage does not have otherwise."""

    labels: Tensor


class Halted(Exception):
    """Raised where the first stage has ended the work, with these values."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.values = values


class ParallelRule:
    """A rule whose subnetworks, and whose batches, are spread over ranks. Every rank makes the same rule from the same
    network and calls the same methods in the same order.

    Args:
        rule: STDL, ELL, DECOLLE or EvenLocal for several stages; any rule for one stage.
        ranks: the role of this process.
        work: the work of each subnetwork, relative to the others; stages get about equal shares. By default
            multiply-adds are counted. If the rule has a budget in bytes, every stage keeps to it on its rank, with the
            batches that wait there.
        runs: the subnetworks of each stage, if they are known already (`Forecast.runs`).
        ahead: how many batches may wait to be sent to the next stage before this one waits for it.
        sync_norm: compute batch norm over the samples of all ranks that share a batch. With it several ranks learn what
            one process learns from the same batches, within rounding. Without it each rank normalises its own samples,
            and the running statistics are those of the first rank.

    From the first step on, a rank holds only the weights and optimizers of its own stage.

    Example:
        >>> ranks = Ranks(stages=2)  # in each process that torchrun has started
        >>> rule = ParallelRule(STDL(model, optimizer, sample), ranks)
        >>> for x, y in batches:  # on stages that do not read data: None, None
        ...     result = rule.step(x, y, T=4)  # None on all stages but the last
    """

    def __init__(
        self,
        rule: Rule,
        ranks: Ranks,
        *,
        work: Sequence[float] | None = None,
        runs: Sequence[range] | None = None,
        ahead: int = AHEAD,
        sync_norm: bool = False,
    ) -> None:
        self.rule, self.ranks = rule, ranks
        self.sync_norm = sync_norm and ranks.data_group is not None
        if self.sync_norm:
            check_norms(rule.modules())
        if runs is None:
            shards = Shards(ranks.shards, self.sync_norm)
            runs = stages_of(rule, ranks.stages, work=work, ahead=ahead, shards=shards)
        self.runs = list(runs)
        """The subnetworks of each stage."""
        self.here = self.runs[ranks.stage]
        self.mine: list[Subnetwork] = rule.subnetworks[self.here.start : self.here.stop]
        self.units = [unit for subnetwork in self.mine for unit in subnetwork.units]
        self.first_unit = sum(len(part.units) for part in rule.subnetworks[: self.here.start])
        self._whole = WholeState(rule, self.here)
        with self.ranks.explaining():
            if ranks.data_group is not None:
                for subnetwork in self.mine:
                    make_equal(subnetwork, ranks.data_group, ranks.rank_of(ranks.stage, 0))
                rule.exchange = SharedGradients(rule, GroupPeers(ranks.data_group))
            self._sender, self._receiver = ranks.sender(ahead), ranks.receiver()
        self._next: Message | None = None
        """A message that was received and has not been used yet."""

    @property
    def received(self) -> list[Tensor]:
        """The tensors of the batch that the next step takes, if `has_more` has found one."""
        return [] if self._next is None else [wire.payload for wire in self._next.wires]

    def step(self, x: Tensor | None, y: Tensor | None, T: int) -> LabelledResult | None:
        """Train on one batch, or on this rank's part of it. The first stage is given x and y as `Rule.step` takes them,
        and the other stages None. The last stage returns the result, and the others None."""
        self._whole.release_others()
        with self.ranks.explaining():
            frames, y, losses = self._taken(x, y, T)
            with self._sharing():
                maps, own, logits = train_stage(self.rule, self.mine, frames, y, T)
            losses = [*losses, *own]
            if self._sender is not None:
                self._sender.send(training_message(y, maps, losses, T))
                return None
        assert logits is not None, "the last stage has the last subnetwork"
        return LabelledResult(losses[-1], losses, logits, y)

    @contextlib.contextmanager
    def _sharing(self) -> Iterator[None]:
        """Inside, batch norm is computed over all ranks if that was asked for, and an error leaves no exchange of
        gradients pending."""
        modules = (module for part in self.mine for module in part.modules())
        group = self.ranks.data_group if self.sync_norm else None
        try:
            with contextlib.nullcontext() if group is None else synchronised(modules, GroupPeers(group)):
                yield
        except BaseException:
            if self.rule.exchange is not None:
                self.rule.exchange.forget()
            raise

    def _taken(self, x: Tensor | None, y: Tensor | None, T: int) -> tuple[Iterable[Kept], Tensor, list[Tensor]]:
        """The input of the first subnetwork here, the labels, and the losses of the subnetworks before it."""
        if self._receiver is None:
            if x is None or y is None:
                raise ValueError("the first stage reads the data: give it x and y, and the other stages None.")
            if self.rule.keeps_bytes:
                self.rule.check_promise(x, T)
            frames = split_frames(x, T, self.rule.network.in_shape)
            check_batch(x, y, len(frames[0]), self.rule.network.head.num_classes, self.rule.modules())
            return in_chunks(frames, self.rule.plan.chunk), y, []
        message = self._received("train", T)
        labels, losses, *maps = message.wires
        return decoded(maps, self.rule.device), self._tensor(labels), list(self._tensor(losses))

    @torch.no_grad()
    def predict(
        self, x: Tensor | None, T: int, labels: Tensor | None = None, rates: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """On the last stage the logits of the plain network in evaluation mode, averaged over T time steps, and the
        labels that were given with x; None on the others. To `rates`, one number per unit, the firing rate of each unit
        on this stage is added."""
        self._whole.release_others()
        with self.ranks.explaining(), self.rule.autocast():
            if self._receiver is None:
                if x is None:
                    raise ValueError("the first stage reads the data: give it x, and the other stages None.")
                labels = torch.zeros(0, dtype=torch.int64) if labels is None else labels
                single = split_frames(x, T, self.rule.network.in_shape)
                samples, frames = len(single[0]), iter(in_chunks(single, self.rule.plan.chunk))
            else:
                message = self._received("predict", T)
                sent_labels, *maps = message.wires
                samples, frames = message.values["samples"], decoded(maps, self.rule.device)
                labels = self._tensor(sent_labels)
            outputs = self._evaluated(frames, samples, T, rates)
            if self._sender is None:
                return torch.as_tensor(sum(over_time(logits, samples) for logits in outputs)) / T, labels
            maps = [encode(keep(output)) for output in outputs]
            self._sender.send(Message("predict", with_labels(labels, maps), {"T": T, "samples": samples}))
            return None

    def _evaluated(self, frames: Iterable[Kept], samples: int, T: int, rates: Tensor | None) -> Iterator[Tensor]:
        """The output of the units here, and on the last stage of the head, for each chunk."""
        modules = [m for part in (*self.units, self.rule.model[-1]) for m in part.modules()]
        own = None if rates is None else rates[self.first_unit : self.first_unit + len(self.units)]
        with evaluating(modules, samples if self.rule.plan.chunk > 1 else None):
            for frame in frames:
                output = measured(self.units, restore(frame), own, samples * T)
                yield self.rule.model[-1](output) if self._sender is None else output

    def halt(self, **values: Any) -> None:
        """On the first stage: end the work on all stages after the batches that they have; their next call raises
        `Halted` with these values."""
        if self._sender is not None:
            with self.ranks.explaining():
                self._sender.send(Message("halt", values=values))

    def end_pass(self) -> None:
        """On the first stage: say that an epoch, or a test set, is over, for `has_more` on the others to answer."""
        if self._sender is not None:
            with self.ranks.explaining():
                self._sender.send(Message("pass ended"))

    def has_more(self) -> bool:
        """On other stages than the first: whether there is another batch in this pass, so that they need not know how
        many there are; waits until that is known."""
        if self._receiver is None:
            raise ValueError("the first stage reads the data: call has_more on the other stages only.")
        with self.ranks.explaining():
            self._next = self._next or self._receiver.receive()
        if self._next.kind == "pass ended":
            self._next = None
            self.end_pass()
            return False
        if self._next.kind == "halt":
            self.halt(**self._next.values)
            raise Halted(self._next.values)
        return True

    def _received(self, kind: str, T: int) -> Message:
        if not self.has_more():
            raise ValueError(f"stage {self.ranks.stage + 1} was asked for another batch, and the pass is over.")
        message, self._next = self._next, None
        assert message is not None, "there is more"
        if message.kind != kind or message.values["T"] != T:
            raise ValueError(
                f"stage {self.ranks.stage + 1} was asked to {kind} with {T} time steps, and the stage before to "
                f"{message.kind} with {message.values['T']}: call the same methods on all ranks."
            )
        return message

    def _tensor(self, wire: Wire) -> Tensor:
        return restore(decode(wire.payload, wire.meta, self.rule.device))

    def advance_schedule(self) -> None:
        """Step the learning-rate schedules of this stage's subnetworks."""
        for scheduler in self.rule.schedulers[self.here.start : self.here.stop]:
            scheduler.step()

    def state_dict(self) -> dict[str, Any] | None:
        """On the last stage what `Rule.state_dict` returns in one process, put together from all stages; None on the
        others."""
        with self.ranks.explaining():
            parts = self.ranks.gathered(self._whole.own_state())
        return None if parts is None else self._whole.joined(parts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on any number of ranks; call it before the first step."""
        self._whole.load(state)

    @property
    def traffic(self) -> dict[str, Traffic]:
        """The traffic over the links of this rank, by direction."""
        ends = {"received": self._receiver, "sent": self._sender}
        return {name: end.traffic for name, end in ends.items() if end is not None}

    def close(self) -> None:
        """Wait until everything has been sent and received, and end the links."""
        self.rule.exchange = None
        with self.ranks.explaining():
            for end in (self._sender, self._receiver):
                if end is not None:
                    end.close()
