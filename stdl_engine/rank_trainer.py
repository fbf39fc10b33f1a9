"""One run on several ranks: what `Trainer` does, with one folder, one printer and one checkpoint for all."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from . import checkpoints
from .building import for_shard, placed
from .data import Batches, Dataset
from .data.loader import generator_for
from .memory.tracker import Tracker
from .meter import Meter
from .parallel import Halted, ParallelRule, Ranks
from .parallel.forecast import Shards, forecast
from .planning.fit import held
from .printer import Printer
from .rank_plan import rule_on_stages
from .recipes import Recipe
from .rules import Rule, StepResult
from .runs import RunFolder
from .scoring import Score, Tally
from .stopping import Stopped, StopSignals
from .trainer import Trainer


class RankTrainer(Trainer):
    """Trains one part of a recipe's network, on one part of its batches.

    The first stage reads the data and decides when to stop; the last one, which is rank 0, counts, prints and writes.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Dataset,
        folder: RunFolder,
        printer: Printer,
        stop: StopSignals,
        ranks: Ranks,
        saved: dict[str, Any] | None = None,
    ) -> None:
        self.ranks, self.shards = ranks, Shards(ranks.shards, recipe.sync_norm)
        super().__init__(recipe, data, folder, printer, stop, saved)
        self.stop.patient = True
        found = forecast(self.rule, ranks.stages, recipe.steps, sequence=self.recipe.events, shards=self.shards)
        self.predicted = replace(self.predicted, peak_bytes=found.stages[ranks.stage].peak_bytes)
        self.parallel = ParallelRule(self.rule, ranks, runs=found.runs, sync_norm=recipe.sync_norm)
        self._seed_this_rank()

    def _seed_this_rank(self) -> None:
        """Make layers that draw random numbers draw different ones on every rank."""
        if self.ranks.rank:
            torch.manual_seed(generator_for(self.recipe.seed, 0, 0, 0, self.ranks.rank).initial_seed())

    @property
    def shard(self) -> dict[str, int]:
        return {"shard": self.ranks.shard, "shards": self.ranks.shards}

    @property
    def recipe_here(self) -> Recipe:
        return for_shard(self.recipe, self.ranks.shards)

    def _make_rule(self, model: nn.Sequential, sample: Tensor, batches: int, saved: dict[str, Any] | None) -> Rule:
        return rule_on_stages(self.recipe_here, self.ranks.stages, self.shards, model, sample, batches, saved)

    def _check_budget(self) -> None:
        if self.ranks.stages == 1:
            super()._check_budget()  # what stages take is known, and checked, when they are balanced

    def run(self) -> dict[str, Any]:
        summary = super().run()
        self.parallel.close()
        return summary

    # `Trainer` passes a board, samples and labels from one of these methods to the next; ranks without them pass None.

    def _board(self) -> contextlib.AbstractContextManager[SummaryWriter | None]:  # type: ignore[override]  # as above
        return super()._board() if self.ranks.speaks else contextlib.nullcontext()

    def _show_on(self, board: SummaryWriter | None, row: dict[str, Any]) -> None:
        if board is not None:
            super()._show_on(board, row)

    def _run_epoch(self, board: SummaryWriter | None) -> None:
        try:
            super()._run_epoch(board)  # type: ignore[arg-type]  # as above
        except Halted as halted:
            self._halt(halted.values["signal"])

    def _batches(self) -> Iterator[tuple[Tensor | None, Tensor | None]]:  # type: ignore[override]  # as above
        if self.ranks.is_first:
            yield from super()._batches()
            self.parallel.end_pass()
        else:
            while self.parallel.has_more():
                yield None, None

    def _train(  # type: ignore[override]  # as above
        self, x: Tensor | None, y: Tensor | None
    ) -> tuple[StepResult | None, Tensor | None]:
        if x is not None and y is not None:
            x, y = placed(self.recipe, x, self.device), y.to(self.device, non_blocking=True)
        batch = self.parallel.received if x is None or y is None else [x, y]
        with self._followed(batch) if self._follows else contextlib.nullcontext():
            result = self.parallel.step(x, y, self.recipe.steps)
        if self.device.type == "cuda":
            self.peak_bytes = max(self.peak_bytes, torch.cuda.max_memory_allocated(self.device))
        self.parallel.advance_schedule()
        return result, None if result is None else result.labels.cpu()

    @contextlib.contextmanager
    def _followed(self, batch: list[Tensor]) -> Iterator[None]:
        """Inside, the memory of this rank's training step is tracked, including its input, and what it holds all the
        time."""
        tracker = Tracker()
        tracker.follow([*held(self.parallel.mine, self.rule.optimizers), *batch])
        batch.clear()  # what was received is freed as it is used
        with tracker:
            yield
        self.peak_bytes = tracker.peak

    def _epoch_row(self) -> dict[str, Any]:
        self.meter = self._joint_meter()
        for batches in (self.train_batches, *self.held_out.values()):
            if (seen := self.ranks.everyones(batches.bad_samples)) is not None:
                batches.bad_samples = list(dict.fromkeys(path for paths in seen for path in paths))
        row = super()._epoch_row()
        peaks = self.ranks.everyones({"peak_bytes": self.peak_bytes, "process_peak_bytes": self.process.peak})
        if peaks is not None:
            row["ranks"] = peaks
        return self.ranks.from_speaker(row)

    def _joint_meter(self) -> Meter:
        """The sums over all ranks; times are this rank's own."""
        if not self.ranks.is_last:
            return self.meter
        meter = self.meter
        losses = meter.losses or [0.0] * len(self.rule.subnetworks)
        counts = [meter.correct, meter.samples, meter.steady_samples, *losses]
        correct, samples, steady, *losses = self.ranks.summed(torch.tensor(counts, dtype=torch.float64)).tolist()
        counted = {"correct": int(correct), "samples": int(samples), "steady_samples": int(steady)}
        return replace(meter, losses=losses, **counted)

    def _score(self, batches: Batches) -> Score:
        tally, T = Tally(self.rule.model, batches, self.device), self.recipe.steps
        for number, x, y in self._held_out_batches(batches):
            rates_here = None if number is None else tally.rates_for(number)
            seen = self.parallel.predict(x, T, y, rates_here)
            if seen is not None:
                tally.add(*seen)
        if self.ranks.is_last:
            tally.totals = self.ranks.summed(tally.totals)
        rates = self.ranks.everyones(tally.rates.cpu())
        tally.rates = tally.rates if rates is None else sum(rates)
        return tally.score()

    def _held_out_batches(self, batches: Batches) -> Iterator[tuple[int | None, Tensor | None, Tensor | None]]:
        numbers = itertools.chain(batches.numbers, itertools.repeat(None))
        if self.ranks.is_first:
            for number, (x, y) in zip(numbers, batches.epoch(0), strict=False):
                yield number, placed(self.recipe, x, self.device), y
            self.parallel.end_pass()
        else:
            while self.parallel.has_more():
                yield next(numbers), None, None

    def _stop_if_asked(self, saved: bool = False) -> None:
        """Stop all ranks after the same batch, if one of them was asked to; the first stage decides."""
        if not self.ranks.is_first:
            if self.stop.number is not None:
                self.ranks.ask_to_stop(self.stop.number)
            return
        number = self.ranks.agreed(self.stop.number or self.ranks.asked_to_stop())
        if number and self.epoch < self.recipe.epochs:  # otherwise there is nothing left to stop
            self.parallel.halt(signal=number)
            self._halt(number)

    def _halt(self, number: int) -> NoReturn:
        self._check_weights()
        self.save()
        self.ranks.meet()  # torchrun ends all ranks when the first has ended, and one of them is still writing
        raise Stopped(number, f": continue with --resume {self.folder.path}")

    def save(self) -> None:
        meter = self._joint_meter()
        numbers = self.ranks.everyones(torch.get_rng_state())
        rule = self.parallel.state_dict() if self.ranks.shard == 0 else None
        if self.ranks.speaks:
            state = self._state() | {"rule": rule, "meter": vars(meter).copy(), "rank_rng": numbers}
            self._write(checkpoints.save, state)

    def _save_best(self) -> None:
        rule = self.parallel.state_dict() if self.ranks.shard == 0 else None
        if self.ranks.speaks:
            assert rule is not None, "rank 0 has the last stage of the first shard"
            self._write_best(rule["model"])

    def restore(self, state: dict[str, Any], path: Path) -> None:
        super().restore(state, path)
        self._measure_again()
        self.meter = self.meter if self.ranks.speaks else Meter()
        numbers = state.get("rank_rng", [])
        if len(numbers) == self.ranks.world:
            torch.set_rng_state(numbers[self.ranks.rank])
        else:
            self._seed_this_rank()
