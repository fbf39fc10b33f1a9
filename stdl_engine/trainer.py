"""One run of one recipe: epochs of training and testing, with a checkpoint after each, so that a crash loses little."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from . import checkpoints
from .building import build_network, find_device, for_data, make_rule, placed, predict_peak, rule_in, sample_batch
from .data import Batches, Dataset, fingerprint, split_off
from .epoch_bar import EpochBar
from .meter import Meter
from .planning.budgets import format_bytes, parse_budget
from .planning.planner import observed_step
from .printer import Printer
from .process_memory import ProcessPeak
from .recipes import Recipe, as_dict
from .rules import Rule, StepResult
from .rules.finite import NotFinite
from .rules.states import plan_of_rule
from .runs import RunFolder, best_row, load_weights
from .scoring import Score, score
from .stopping import Stopped, StopSignals

SCALARS = (
    "train_loss", "train_accuracy", "test_loss", "test_accuracy", "validation_loss", "validation_accuracy",
    "samples_per_second", "peak_bytes", "process_peak_bytes", "lr",
)  # fmt: skip
"""Metrics of an epoch that TensorBoard shows as one curve each."""


NEEDED = (
    "epoch", "train_loss", "train_accuracy", "train_seconds", "samples", "steady_seconds", "steady_samples",
    "test_accuracy", "process_peak_bytes", "process_growth_bytes",
)  # fmt: skip
"""Metrics of an epoch that the summary of a run needs."""


UNSTEADY = 2
"""The number of batches at the start of a process whose time does not count: kernels are compiled, and the memory of
the second one is tracked."""


class Diverged(ArithmeticError):
    """The loss is no longer a number."""


class Trainer:
    """Trains a recipe on data, into a folder. `saved` is the state of the rule that the run will continue with."""

    def __init__(
        self,
        recipe: Recipe,
        data: Dataset,
        folder: RunFolder,
        printer: Printer,
        stop: StopSignals | None = None,
        saved: dict[str, Any] | None = None,
    ) -> None:
        self.recipe = for_data(recipe, data)
        self.folder, self.printer, self.stop = folder, printer, stop or StopSignals()
        self.device = find_device(recipe.device)
        self.data_fingerprint = fingerprint(data)
        held_out = {"test": data.test}
        if recipe.validate:
            data, held_out["validation"] = split_off(data, recipe.validate, recipe.seed)
        settings = {"workers": recipe.workers, "batch_size": recipe.batch_size, "seed": recipe.seed, **self.shard}
        self.train_batches = Batches(data.train, training=True, **settings)
        self.held_out = {name: Batches(source, training=False, **settings) for name, source in held_out.items()}
        self.process = ProcessPeak.start()
        torch.manual_seed(recipe.seed)
        model = build_network(self.recipe).to(self.device)
        here = self.recipe_here
        sample = sample_batch(here, self.device)
        self.rule = self._make_rule(model, sample, recipe.epochs * len(self.train_batches), saved)
        self.predicted = predict_peak(rule_in(here, self.rule), model, self.rule.plan)
        self._check_budget()
        self.parameters = sum(p.numel() for p in model.parameters())
        if recipe.compile:
            for subnetwork in self.rule.subnetworks:
                for layer in (*subnetwork.units, *subnetwork.classifier_layers()):
                    layer.compile(dynamic=False)  # every unit has its own channels, and they never change
        self.epoch, self.batch, self.meter, self.peak_bytes = 0, 0, Meter(), 0
        self.trained_here = 0
        self.rows: list[dict[str, Any]] = []
        self.bad_samples_named = 0

    @property
    def shard(self) -> dict[str, int]:
        """The part of each batch that this process has, as arguments for `Batches`."""
        return {}

    @property
    def recipe_here(self) -> Recipe:
        """The recipe with the batch size of this process."""
        return self.recipe

    def _make_rule(self, model: nn.Sequential, sample: Tensor, batches: int, saved: dict[str, Any] | None) -> Rule:
        return make_rule(self.recipe_here, model, sample, batches, saved)

    def _check_budget(self) -> None:
        """Refuse a plan that was made for other processes than this one, and takes more here than the budget."""
        budget = None if self.recipe.budget is None else parse_budget(self.recipe.budget).size
        if budget is not None and self.predicted.peak_bytes > budget:
            raise ValueError(
                f"a training step of this run takes {self.in_words(self.predicted.peak_bytes)} in this process, and "
                f"its budget is {self.in_words(budget)}: it was planned for more processes, so continue it with "
                "torchrun and --stages."
            )

    @property
    def batches_done(self) -> int:
        """Batches trained on since the run began."""
        return self.epoch * len(self.train_batches) + self.batch

    def run(self) -> dict[str, Any]:
        """Train to the last epoch and return the summary; on a signal, save and raise Stopped."""
        self.folder.write("plan.txt", f"{self.rule.plan.table(80)}\n")
        with self.stop.deferred(), self._board() as board:
            while self.epoch < self.recipe.epochs:
                self._run_epoch(board)
        figures = {"predicted_bytes": self.predicted.peak_bytes, "peak_bytes": self.peak_bytes}
        return self.folder.write_summary(self.rows, **figures, parameters=self.parameters)

    def _board(self) -> contextlib.AbstractContextManager[SummaryWriter]:
        return SummaryWriter(self.folder.path / "tensorboard", purge_step=self.epoch + 1)

    def _run_epoch(self, board: SummaryWriter) -> None:
        last = f"epoch {self.epoch + 1}/{self.recipe.epochs}"
        with EpochBar(self.printer.console, last, len(self.train_batches), self.batch) as bar:
            start = time.perf_counter()
            for x, y in self._batches():
                try:
                    result, y = self._train(x, y)
                    losses = [] if result is None else _checked_losses(result)
                except NotFinite as error:
                    raise self._diverged(error.what) from error
                self.trained_here += 1
                if result is not None:
                    correct = int((result.logits.argmax(1).cpu() == y).sum())
                    now = time.perf_counter()
                    self.meter.add(losses, correct, len(y), now - start, steady=self.trained_here > UNSTEADY)
                    start = now
                self.batch += 1
                bar.show(self.meter.summary, self.peak_bytes)
                self._stop_if_asked()
        row = self._epoch_row()
        self.rows.append(row)
        self.epoch, self.batch, self.meter = self.epoch + 1, 0, Meter()
        self._check_weights()
        if best_row(self.rows) is row:
            self._save_best()
        self.save()
        self.folder.write_metrics(self.rows)
        self._show_on(board, row)
        validation = f"  validation {row['validation_accuracy']:.1%}" if "validation_accuracy" in row else ""
        self.printer.say(
            f"{last}  loss {row['train_loss']:.3f}  train {row['train_accuracy']:.1%}{validation}"
            f"  test {row['test_accuracy']:.1%}  {row['samples_per_second']:.0f} samples/s"
        )
        self._stop_if_asked(saved=True)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The rest of this epoch's batches."""
        try:
            yield from self.train_batches.epoch(self.epoch, skip=self.batch)
        except RuntimeError:
            self._stop_if_asked()  # the signal may also have reached the processes that read files
            raise

    def _epoch_row(self) -> dict[str, Any]:
        """The metrics of the epoch that has just been trained."""
        row = {"epoch": self.epoch + 1, **self.meter.summary}
        for name, batches in self.held_out.items():
            seen = self._score(batches)
            row |= {f"{name}_accuracy": seen.accuracy, f"{name}_loss": seen.loss}
            if name == "test":
                row["firing_rates"] = seen.firing_rates
        row |= {"lr": self.rule.optimizers[-1].param_groups[0]["lr"], "predicted_bytes": self.predicted.peak_bytes}
        row |= {"peak_bytes": self.peak_bytes, "process_peak_bytes": self.process.peak}
        row |= {"process_growth_bytes": self.process.growth}
        if bad := [path for batches in (self.train_batches, *self.held_out.values()) for path in batches.bad_samples]:
            row["bad_samples"] = len(bad)
            self._name_bad_samples(bad)
        return row

    def _score(self, batches: Batches) -> Score:
        return score(self.rule.model, batches, self.recipe, self.device, chunk=self.rule.plan.chunk)

    def _name_bad_samples(self, bad: list[Path | str]) -> None:
        """Print which files were left out, each once."""
        for path in bad[self.bad_samples_named :]:
            self.printer.say(f"left out, as it cannot be read: {path}")
        self.bad_samples_named = len(bad)

    def _show_on(self, board: SummaryWriter, row: dict[str, Any]) -> None:
        figures = {name: row[name] for name in SCALARS if name in row}
        figures |= {f"firing_rate/{unit}": rate for unit, rate in row["firing_rates"].items()}
        figures |= {f"subnetwork_loss/{number}": loss for number, loss in enumerate(row["subnetwork_losses"], 1)}
        for name, value in figures.items():
            board.add_scalar(name, value, self.epoch)
        board.flush()

    def _train(self, x: Tensor, y: Tensor) -> tuple[StepResult | None, Tensor]:
        """Train on one batch and return the result with its labels on the CPU. The memory of the second batch is
        tracked, as the optimizer has its state by then."""
        labels = y
        x, y, T = placed(self.recipe, x, self.device), y.to(self.device, non_blocking=True), self.recipe.steps
        if self._follows:
            result, prediction = observed_step(self.rule, x, y, T)
            self.peak_bytes = prediction.peak_bytes
        else:
            result = self.rule.step(x, y, T)
        if self.device.type == "cuda":
            self.peak_bytes = max(self.peak_bytes, torch.cuda.max_memory_allocated(self.device))
        self.rule.advance_schedule()
        return result, labels

    @property
    def _follows(self) -> bool:
        """Whether the memory of the next batch is to be tracked: that of the second one, or of the only one."""
        only_one = self.recipe.epochs * len(self.train_batches) == 1
        return self.device.type == "cpu" and not self.peak_bytes and bool(self.batches_done or only_one)

    def _diverged(self, what: str) -> Diverged:
        return Diverged(
            f"{what} became not finite in epoch {self.epoch + 1}, batch {self.batch + 1}: lower --lr (it is "
            f"{self.recipe.lr:g}); the last good checkpoint is kept in {self.folder.path}."
        )

    def _check_weights(self) -> None:
        """Raise Diverged if a weight is no longer a number, so that no checkpoint holds it."""
        bad = [name for name, value in self.rule.model.state_dict().items() if not value.isfinite().all()]
        if bad:
            raise self._diverged(bad[0])

    def _stop_if_asked(self, saved: bool = False) -> None:
        """Save and stop if a signal has come."""
        if self.stop.number is not None:
            if not saved:
                self._check_weights()
                self.save()
            raise Stopped(self.stop.number, f": continue with --resume {self.folder.path}")

    def save(self) -> None:
        """Write a checkpoint with everything that the rest of the run depends on."""
        state = self._state() | {"rule": self.rule.state_dict(), "meter": vars(self.meter).copy()}
        self._write(checkpoints.save, state)

    def _state(self) -> dict[str, Any]:
        """What a checkpoint holds besides the rule and the meter."""
        return {
            "config": as_dict(self.recipe),
            "data": self.data_fingerprint,
            "epoch": self.epoch,
            "batch": self.batch,
            "rows": self.rows,
            "peak_bytes": self.peak_bytes,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
        }

    def _save_best(self) -> None:
        """Keep the weights of this epoch, the best so far; called before its checkpoint, which relies on them."""
        self._write_best(self.rule.model.state_dict())

    def _write_best(self, weights: dict[str, Any]) -> None:
        rule = {"model": weights, **plan_of_rule(self.rule)}
        self._write(checkpoints.save_best, {"config": as_dict(self.recipe), "rule": rule, "epoch": self.epoch})

    def _write(self, write: Any, state: dict[str, Any]) -> None:
        try:
            write(self.folder.path, self.batches_done, state)
        except OSError as error:
            raise ValueError(
                f"cannot write a checkpoint to {self.folder.path} ({error.strerror}): make room and continue with "
                f"--resume {self.folder.path}."
            ) from error

    def restore(self, state: dict[str, Any], path: Path) -> None:
        """Continue from the checkpoint in this file as if the run had not stopped; that of another run is refused."""
        if state["data"] != self.data_fingerprint:
            raise ValueError(
                f"the data in {self.recipe.data} is not what this run was begun on: restore it, or begin a new run."
            )
        try:
            self.rule.load_state_dict(state["rule"])
            self.epoch, self.batch, self.meter = state["epoch"], state["batch"], Meter(**state["meter"])
            self.rows, self.peak_bytes = state["rows"], state["peak_bytes"]
            if "rank_rng" in state:
                self._measure_again()
            if lacking := {name for row in self.rows for name in NEEDED if name not in row}:
                raise KeyError(", ".join(sorted(lacking)))
            self.folder.write_metrics(self.rows)  # lines after the checkpoint will be written again
            torch.set_rng_state(state["rng"])
            if state["cuda_rng"] and self.device.type == "cuda":
                torch.cuda.set_rng_state_all(state["cuda_rng"])
        except (KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{path} is no checkpoint that can be continued from ({what}): start a new run."
            ) from error

    def _measure_again(self) -> None:
        """Track the next batch, if there is one: the peak in a checkpoint is that of rank 0 with its stage."""
        if self.epoch < self.recipe.epochs:
            self.peak_bytes = 0

    def start_from(self, state: dict[str, Any]) -> None:
        """Begin with the weights of another run, and with those of its auxiliary networks if the shapes agree."""
        model, saved = self.rule.model, state["rule"]
        _load_weights("the network", model, saved["model"])
        here = [part.classifier for part in self.rule.subnetworks if not part.is_last]
        if saved.get("plan") == str(self.rule.plan):
            for classifier, values in zip(here, saved["auxiliary"], strict=True):
                _load_weights("an auxiliary network", classifier, values)

    def in_words(self, size: int) -> str:
        """Bytes in GiB if the budget was written that way, otherwise in GB."""
        return format_bytes(size, self.recipe.budget is not None and parse_budget(self.recipe.budget).binary)

    def memory_report(self) -> str:
        """The peak of a training step, predicted and measured, and that of the whole process, in one line."""
        sizes = (self.predicted.peak_bytes, self.peak_bytes, self.process.peak, self.process.growth)
        predicted, measured, process, growth = map(self.in_words, sizes)
        return (
            f"peak memory of a training step: predicted {predicted}, measured {measured}; of the process: {process}, "
            f"{growth} more than before the network was built"
        )


def _checked_losses(result: StepResult) -> list[float]:
    """The losses of the subnetworks; raises if one is not finite."""
    losses = torch.stack(result.losses).tolist()
    for number, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            raise NotFinite(f"the loss of subnetwork {number}", "")
    return losses


def _load_weights(what: str, module: nn.Module, values: dict[str, Tensor]) -> None:
    remedy = "train both stages with the same model, width and data"
    load_weights(module, values, f"the weights to start from do not fit {what}: {remedy}.")
