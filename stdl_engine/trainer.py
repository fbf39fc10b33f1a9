"""One run of one recipe: epochs of training and testing, with a checkpoint after each, that a crash cannot spoil."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from . import checkpoints
from .data import Batches, Dataset
from .planning.budgets import format_bytes
from .planning.planner import observed_step
from .progress import EpochBar
from .recipes import Recipe, as_dict
from .rules import StepResult
from .rules.finite import NotFinite
from .rules.inference import accuracy
from .runs import RunFolder


class Diverged(ArithmeticError):
    """The loss is no longer a number."""


class Interrupted(Exception):
    """A signal asked the run to stop; a checkpoint has been written."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}: go on by --resume {folder}")
        self.exit_code = 128 + number


@dataclass
class Meter:
    """What an epoch has seen so far; part of a checkpoint, so a resumed epoch reports all of itself."""

    loss: float = 0.0
    correct: int = 0
    samples: int = 0
    seconds: float = 0.0

    def add(self, loss: float, correct: int, samples: int, seconds: float) -> None:
        self.loss += loss * samples
        self.correct += correct
        self.samples += samples
        self.seconds += seconds

    @property
    def summary(self) -> dict[str, float]:
        return {
            "train_loss": self.loss / max(self.samples, 1),
            "train_accuracy": self.correct / max(self.samples, 1),
            "samples": self.samples,
            "train_seconds": self.seconds,
            "samples_per_second": self.samples / self.seconds if self.seconds else 0.0,
        }


class Trainer:
    """Trains a recipe on data, into a folder."""

    def __init__(self, recipe: Recipe, data: Dataset, folder: RunFolder, console: Console) -> None:
        self.recipe, self.folder, self.console = recipe.for_data(data), folder, console
        self.device = device_of(recipe.device)
        workers = {"workers": recipe.workers, "batch_size": recipe.batch_size, "seed": recipe.seed}
        self.train_batches = Batches(data.train, training=True, **workers)
        self.test_batches = Batches(data.test, training=False, **workers)
        torch.manual_seed(recipe.seed)
        model = self.recipe.build().to(self.device)
        sample = self._placed(torch.empty(recipe.batch_size, *self.recipe.in_shape, device=self.device))
        self.rule = self.recipe.make_rule(model, sample, recipe.epochs * len(self.train_batches))
        if recipe.compile:
            for subnetwork in self.rule.subnetworks:
                for layer in (*subnetwork.units, *subnetwork.classifier_layers()):
                    layer.compile(dynamic=False)  # every unit has its own channels, and they never change
        self.epoch, self.batch, self.meter, self.peak_bytes = 0, 0, Meter(), 0
        self.rows: list[dict[str, Any]] = []
        self.stop_signal = self.bad_samples_named = 0

    @property
    def batches_done(self) -> int:
        """Batches trained on since the run began."""
        return self.epoch * len(self.train_batches) + self.batch

    def run(self) -> dict[str, Any]:
        """Train to the last epoch and give the summary; interrupted by a signal, save and raise Interrupted."""
        self.folder.write("plan.txt", f"{self.rule.plan}\n")
        handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with SummaryWriter(self.folder.path / "tensorboard", purge_step=self.epoch + 1) as board:
                while self.epoch < self.recipe.epochs:
                    self._run_epoch(board)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        parameters = sum(p.numel() for p in self.rule.model.parameters())
        return self.folder.write_summary(self.rows, parameters, self.peak_bytes)

    def _run_epoch(self, board: SummaryWriter) -> None:
        last = f"epoch {self.epoch + 1}/{self.recipe.epochs}"
        with EpochBar(self.console, last, len(self.train_batches), self.batch) as bar:
            start = time.perf_counter()
            for x, y in self.train_batches.epoch(self.epoch, skip=self.batch):
                try:
                    result = self._train(x, y)
                except NotFinite as error:
                    raise self._diverged(f"{error.what} became not finite") from error
                loss, correct = self._checked_loss(result), (result.logits.argmax(1).cpu() == y).sum().item()
                now = time.perf_counter()
                self.meter.add(loss, correct, len(y), now - start)
                start = now
                self.batch += 1
                bar.show(self.meter.summary, self.peak_bytes)
                if self.stop_signal:
                    self.save()
                    raise Interrupted(self.stop_signal, self.folder.path)
        row = {"epoch": self.epoch + 1, **self.meter.summary, "test_accuracy": self.test()}
        row |= {"lr": self.rule.optimizers[-1].param_groups[0]["lr"], "peak_bytes": self.peak_bytes}
        if bad := [*self.train_batches.bad_samples, *self.test_batches.bad_samples]:
            row["bad_samples"] = len(bad)
            self._name_bad_samples(bad)
        self.rows.append(row)
        self.epoch, self.batch, self.meter = self.epoch + 1, 0, Meter()
        self.save()
        self.folder.write_metrics(self.rows)
        for name in ("train_loss", "train_accuracy", "test_accuracy", "samples_per_second", "peak_bytes", "lr"):
            board.add_scalar(name, row[name], self.epoch)
        board.flush()
        self.console.print(
            f"{last}  loss {row['train_loss']:.3f}  train {row['train_accuracy']:.1%}  test {row['test_accuracy']:.1%}"
            f"  {row['samples_per_second']:.0f} samples/s  peak {format_bytes(self.peak_bytes)}",
            highlight=False,
        )
        if self.stop_signal:
            raise Interrupted(self.stop_signal, self.folder.path)

    def _name_bad_samples(self, bad: list[Path]) -> None:
        """Say which files were left out, each once."""
        for path in bad[self.bad_samples_named :]:
            self.console.print(f"left out, as it cannot be read: {path}", highlight=False, markup=False)
        self.bad_samples_named = len(bad)

    def _train(self, x: Tensor, y: Tensor) -> StepResult:
        """One batch; the second one's memory is followed, once the optimizer has its state."""
        x, y, T = self._placed(x), y.to(self.device, non_blocking=True), self.recipe.steps
        follow = self.device.type == "cpu" and not self.peak_bytes and (self.batches_done or self._only_one_batch)
        if follow:
            result, prediction = observed_step(self.rule, x, y, T)
            self.peak_bytes = prediction.peak_bytes
        else:
            result = self.rule.step(x, y, T)
        if self.device.type == "cuda":
            self.peak_bytes = max(self.peak_bytes, torch.cuda.max_memory_allocated(self.device))
        self.rule.advance_schedule()
        return result

    @property
    def _only_one_batch(self) -> bool:
        return self.recipe.epochs * len(self.train_batches) == 1

    def _checked_loss(self, result: StepResult) -> float:
        losses = torch.stack(result.losses).tolist()
        for number, loss in enumerate(losses, 1):
            if not math.isfinite(loss):
                raise self._diverged(f"the loss of subnetwork {number} became {loss}")
        return losses[-1]

    def _diverged(self, what: str) -> Diverged:
        return Diverged(
            f"{what} in epoch {self.epoch + 1}, batch {self.batch + 1}: lower --lr (it is {self.recipe.lr:g}); the "
            f"last good checkpoint is kept in {self.folder.path}."
        )

    def _placed(self, x: Tensor) -> Tensor:
        x = x.to(self.device, non_blocking=True)
        if x.ndim != 4:
            return x
        if self.recipe.channels_last:
            return x.contiguous(memory_format=torch.channels_last)
        # A single channel is contiguous in both orders, and only fresh strides say which is meant.
        return x.contiguous().flatten().view(x.shape)

    def test(self) -> float:
        """Accuracy of the plain network on the test set."""
        found, _ = accuracy(lambda x: self.rule.predict(self._placed(x), self.recipe.steps), self.test_batches.epoch(0))
        return found

    def save(self) -> None:
        """Write a checkpoint of everything that the rest of the run depends on, if it is any good."""
        bad = [name for name, value in self.rule.model.state_dict().items() if not value.isfinite().all()]
        if bad:
            raise self._diverged(f"{bad[0]} became not finite")
        state = {
            "config": as_dict(self.recipe),
            "rule": self.rule.state_dict(),
            "epoch": self.epoch,
            "batch": self.batch,
            "meter": vars(self.meter).copy(),
            "rows": self.rows,
            "peak_bytes": self.peak_bytes,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
        }
        try:
            checkpoints.save(self.folder.path, self.batches_done, state)
        except OSError as error:
            raise ValueError(
                f"cannot write a checkpoint to {self.folder.path} ({error.strerror}): make room and go on by "
                f"--resume {self.folder.path}."
            ) from error

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint as if nothing had happened."""
        self.rule.load_state_dict(state["rule"])
        self.epoch, self.batch, self.meter = state["epoch"], state["batch"], Meter(**state["meter"])
        self.rows, self.peak_bytes = state["rows"], state["peak_bytes"]
        self.folder.write_metrics(self.rows)  # lines written after the checkpoint are about to be written again
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"] and self.device.type == "cuda":
            torch.cuda.set_rng_state_all(state["cuda_rng"])

    def start_from(self, state: dict[str, Any]) -> None:
        """Begin with the weights of another run, its auxiliary networks too if they are of the same shapes."""
        model, saved = self.rule.model, state["rule"]
        load_weights("the network", model, saved["model"])
        here = [part.classifier for part in self.rule.subnetworks if not part.is_last]
        if saved["plan"] == str(self.rule.plan):
            for classifier, values in zip(here, saved["auxiliary"], strict=True):
                load_weights("an auxiliary network", classifier, values)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stop_signal:  # asked twice: at once
            raise KeyboardInterrupt
        self.stop_signal = number


def load_weights(what: str, module: nn.Module, values: dict[str, Tensor]) -> None:
    """Load weights of a module of the same shapes; another one's are refused in a sentence."""
    try:
        module.load_state_dict(values)
    except RuntimeError as error:
        raise ValueError(
            f"the weights to start from do not fit {what}: train both stages with the same model, width and data."
        ) from error


def device_of(name: str) -> torch.device:
    """The device of that name, which must be there; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f'unknown device {name!r}: pass "auto", "cpu" or "cuda".') from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f'the device {name!r} is not supported: pass "auto", "cpu" or "cuda".')
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(
            f"the device {name!r} was asked for, and there are {torch.cuda.device_count()} GPUs: pass --device cpu."
        )
    return device
