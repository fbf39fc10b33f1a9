"""What is measured each epoch, where it goes, and what it costs."""

import contextlib
import io
import json
import re

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stdl_engine.building import build_network, placed
from stdl_engine.data import Batches, load_dataset
from stdl_engine.meter import Meter, speed
from stdl_engine.neurons import Neuron
from stdl_engine.planning.budgets import format_bytes
from stdl_engine.recipes import RECIPES
from stdl_engine.rules.inference import mean_logits
from stdl_engine.scoring import score
from stdl_engine.train import main

from .conftest import QUICK, write_data

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run, its rows, and what was printed."""
    folder, printed = tmp_path_factory.mktemp("metrics"), io.StringIO()
    settings = [*QUICK, "--data", str(write_data(folder / "data.npz")), "--epochs", "2", "--validate", "0.25"]
    with contextlib.redirect_stdout(printed):
        assert main(["digits", *settings, "--out", str(folder / "run")]) == 0
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return folder / "run", rows, printed.getvalue()


def test_a_row(run):
    _, rows, _ = run
    for row in rows:
        assert len(row["subnetwork_losses"]) == 3
        assert row["subnetwork_losses"][-1] == row["train_loss"]
        assert len(row["firing_rates"]) == 9
        assert list(row["firing_rates"])[:2] == ["1 4C3", "2 4R"]
        assert all(0 <= rate <= 1 for rate in row["firing_rates"].values())
        assert any(rate > 0 for rate in row["firing_rates"].values())
        assert 0 < row["test_loss"] < 10
        assert 0 < row["validation_loss"] < 10
        assert row["predicted_bytes"] == row["peak_bytes"] > 0
        assert row["process_peak_bytes"] > row["process_growth_bytes"] > 0


def test_tensorboard_has_it_all(run):
    folder, rows, _ = run
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    tags = set(board.Tags()["scalars"])
    assert {"train_loss", "test_loss", "validation_accuracy", "process_peak_bytes", "subnetwork_loss/1"} <= tags
    assert {f"firing_rate/{unit}".replace("(", "_").replace(")", "_") for unit in rows[0]["firing_rates"]} <= {
        tag.replace("(", "_").replace(")", "_") for tag in tags
    }
    assert [event.value for event in board.Scalars("test_loss")] == pytest.approx([row["test_loss"] for row in rows])


def test_the_log_is_what_was_printed_with_the_time(run):
    folder, _, printed = run
    lines = (folder / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in lines)
    assert [line[21:].rstrip() for line in lines] == [line.rstrip() for line in printed.splitlines()]


def test_memory_is_said_before_and_after(run):
    _, rows, printed = run
    predicted = format_bytes(rows[0]["predicted_bytes"])
    assert f"predicted peak memory of a training step: {predicted}" in printed
    report = r"peak memory of a training step: predicted (\S+ \S+), measured (\S+ \S+); of the process: (\S+ \S+), "
    assert re.search(report, printed).groups()[:2] == (predicted, predicted)


def test_everything_fits_eighty_columns_but_figures_and_paths(run):
    _, _, printed = run
    table = printed.splitlines()[: printed.splitlines().index(next(x for x in printed.splitlines() if "whole" in x))]
    assert len(table) > 3
    assert max(map(len, table)) <= 80


@pytest.fixture(scope="module")
def setting():
    recipe = RECIPES["digits"]
    torch.manual_seed(0)
    model = build_network(recipe)
    batches = Batches(load_dataset("digits", augment="none").test, batch_size=50, training=False)
    return recipe, model, batches


class TestScore:
    def test_by_hand(self, setting):
        recipe, model, batches = setting
        seen = score(model, batches, recipe, CPU)
        logits = torch.cat([mean_logits(model, [placed(recipe, x, CPU)] * recipe.steps) for x, _ in batches.epoch(0)])
        y = torch.cat([y for _, y in batches.epoch(0)])
        assert seen.samples == len(y) == 297
        assert seen.accuracy == (logits.argmax(1) == y).sum().item() / 297
        assert seen.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, y).item(), rel=1e-6)

    def test_rates_are_the_neurons_own(self, setting):
        """Mean output of each unit's neuron layer over four of the six batches, seen from outside by hooks."""
        recipe, model, batches = setting
        seen = score(model, batches, recipe, CPU).firing_rates
        spikes = {}
        neurons = [m for m in model.modules() if isinstance(m, Neuron)]
        handles = [
            n.register_forward_hook(lambda n, _, out: spikes.setdefault(n, []).append(out.mean().item()))
            for n in neurons
        ]
        for number, (x, _) in enumerate(batches.epoch(0)):
            if number in (0, 2, 3, 4):
                mean_logits(model, [placed(recipe, x, CPU)] * recipe.steps)
        for handle in handles:
            handle.remove()
        by_hand = [sum(spikes[n]) / len(spikes[n]) for n in neurons]
        assert list(seen.values()) == pytest.approx(by_hand, rel=1e-4)

    def test_measuring_changes_nothing(self, setting):
        recipe, model, batches = setting
        x = placed(recipe, next(batches.epoch(0))[0], CPU)
        rates = torch.zeros(len(model) - 1)
        assert torch.equal(mean_logits(model, [x] * 4), mean_logits(model, [x] * 4, rates))
        assert rates[0] > 0

    def test_what_it_costs_in_operations(self, setting):
        """Rates are read on four batches of a set, however large: one mean for each unit and time step of those."""
        recipe, model, batches = setting
        from torch.utils._python_dispatch import TorchDispatchMode

        class Count(TorchDispatchMode):
            elements = 0

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                if func is torch.ops.aten.mean.dim or func is torch.ops.aten.mean.default:
                    self.elements += args[0].numel()
                return func(*args, **(kwargs or {}))

        with Count() as count:
            score(model, batches, recipe, CPU)
        with Count() as whole:
            for x, _ in batches.epoch(0):
                mean_logits(model, [placed(recipe, x, CPU)] * recipe.steps, torch.zeros(len(model) - 1))
        with Count() as none:
            for x, _ in batches.epoch(0):
                mean_logits(model, [placed(recipe, x, CPU)] * recipe.steps)
        assert (count.elements - none.elements) == pytest.approx((whole.elements - none.elements) * 4 * 50 / 297)


def test_meter():
    meter = Meter()
    meter.add([3.0, 1.0], correct=2, samples=4, seconds=1.0)
    meter.add([1.0, 3.0], correct=12, samples=12, seconds=1.0)
    summary = meter.summary
    assert summary["subnetwork_losses"] == [1.5, 2.5]
    assert summary["train_loss"] == 2.5
    assert (summary["train_accuracy"], summary["samples_per_second"]) == (14 / 16, 8.0)
    assert Meter().summary["train_loss"] == 0.0


def test_speed_is_that_of_steady_batches():
    """The first batches compile kernels: in a comparison the first rule would pay for all."""
    meter = Meter()
    meter.add([1.0], correct=0, samples=10, seconds=9.0, steady=False)
    assert meter.summary["samples_per_second"] == 10 / 9  # for want of others
    meter.add([1.0], correct=0, samples=10, seconds=1.0)
    meter.add([1.0], correct=0, samples=10, seconds=3.0)
    assert meter.summary["samples_per_second"] == 5.0
    assert meter.summary["train_seconds"] == 13.0
    assert speed([meter.summary, meter.summary]) == 5.0
    assert speed([]) == 0.0


def test_the_first_two_batches_of_a_process_are_not_steady(run):
    _, rows, _ = run
    assert [(row["samples"], row["steady_samples"]) for row in rows] == [(48, 16), (48, 48)]
