"""One run on several ranks: one folder, the same numbers as in one process, and an end for all when one is lost."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stdl_engine import checkpoints, evaluate, load, rank_plan
from stdl_engine.building import build_network, sample_batch
from stdl_engine.parallel.forecast import Shards
from stdl_engine.plan import main as plan
from stdl_engine.planning.budgets import OverBudget
from stdl_engine.rank_plan import rule_on_stages
from stdl_engine.recipes import RECIPES, Recipe
from stdl_engine.rules import Rule
from stdl_engine.stopping import StopSignals
from stdl_engine.train import command, main

from .processes import run
from .test_stages import assert_same_state

SMALL = ["digits", "--width", "0.0625", "--steps", "2", "--epochs", "2", "--batch-size", "300", "--device", "cpu"]
TIMES = ("train_seconds", "steady_seconds", "steady_samples", "samples_per_second")
SIZES = ("peak_bytes", "predicted_bytes", "process_peak_bytes", "process_growth_bytes", "ranks")


HANG_SECONDS = 25


def train(arguments: list[str], kill_after: int | None = None, victim: int = 1, hang: bool = False) -> int:
    """The command on this rank, ended with what a shell would see; one rank is killed, or hangs, after so many
    batches."""
    os.environ["WORLD_SIZE"] = str(torch.distributed.get_world_size())
    if kill_after is not None and torch.distributed.get_rank() == victim:
        from stdl_engine.parallel import ParallelRule

        step, steps = ParallelRule.step, []

        def dying(self, *batch):
            steps.append(None)
            if len(steps) > kill_after:
                time.sleep(HANG_SECONDS if hang else 0)
                os.kill(os.getpid(), signal.SIGKILL)
            return step(self, *batch)

        ParallelRule.step = dying
    with StopSignals() as stop:
        command(arguments, stop)
    return 0


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main([*SMALL, "--out", str(out)]) == 0
    return out


def state_of(folder: Path) -> dict:
    return checkpoints.load_last(folder)[1]


def assert_same_run(one: Path, other: Path) -> None:
    """The same weights, optimizers and figures; times and sizes aside."""
    first, second = state_of(one), state_of(other)
    for name in ("rule", "epoch", "batch", "data", "config"):
        assert_same_state(first[name], second[name], name)
    for a, b in zip(first["rows"], second["rows"], strict=True):
        kept = a.keys() - {*TIMES, *SIZES}
        assert {name: a[name] for name in kept} == {name: b[name] for name in kept}


def test_two_stages_write_the_run_of_one_process(alone, tmp_path, capsys):
    out = tmp_path / "run"
    run(2, train, [*SMALL, "--stages", "2", "--out", str(out)])
    assert_same_run(alone, out)
    written = {path.name.partition("-")[0] for path in out.iterdir()}
    assert written == {path.name.partition("-")[0] for path in alone.iterdir()}
    printed = capsys.readouterr().out
    assert printed.count("epoch 2/2") == 1
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
    assert len(list((out / "tensorboard").iterdir())) == 1
    row = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert len(row["ranks"]) == 2
    assert row["peak_bytes"] == row["predicted_bytes"]  # of the last stage alone
    assert row["peak_bytes"] < state_of(alone)["rows"][-1]["peak_bytes"]
    weights = load(alone).state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in load(out).state_dict().items())
    options = evaluate.Options(folder=out, device="cpu")
    assert evaluate.evaluate(options)["test_accuracy"] == state_of(alone)["rows"][-1]["test_accuracy"]


def test_stages_keep_to_a_budget_as_planned(tmp_path, capsys):
    out = tmp_path / "run"
    options = [*SMALL, "--rule", "ell", "--chunk", "2", "--budget", "30MB"]
    assert plan([*options, "--stages", "3", "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert all(stage["rank_bytes"] == stage["peak_bytes"] + stage["in_flight_bytes"] <= 30e6 for stage in stages)
    run(3, train, [*options, "--epochs", "1", "--stages", "3", "--out", str(out)])
    (row,) = state_of(out)["rows"]
    assert [rank["peak_bytes"] for rank in row["ranks"]] == [stage["peak_bytes"] for stage in stages[::-1]]


TOO_LARGE_FOR_ONE = [
    "digits", "--rule", "ell", "--width", "0.25", "--steps", "2", "--batch-size", "25", "--epochs", "1",
    "--device", "cpu",
]  # fmt: skip
"""Most of what it takes are weights, so half of a network takes about half."""


def test_stages_keep_to_a_budget_that_one_process_cannot(tmp_path, capsys):
    out, options = tmp_path / "run", [*TOO_LARGE_FOR_ONE, "--budget", "5.5MB"]
    assert plan(options) == 2
    assert "a training step takes more than 5.50 MB" in capsys.readouterr().err
    assert plan([*options, "--stages", "2", "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert all(stage["rank_bytes"] <= 5.5e6 for stage in stages)
    run(2, train, [*options, "--stages", "2", "--out", str(out)])
    (row,) = state_of(out)["rows"]
    assert [rank["peak_bytes"] for rank in row["ranks"]] == [stage["peak_bytes"] for stage in stages[::-1]]
    capsys.readouterr()
    assert main(["--resume", str(out)]) == 2
    assert "it was planned for more processes, so continue it with torchrun and --stages" in capsys.readouterr().err


def test_a_subnetwork_per_stage_where_one_process_is_too_small(capsys):
    options = ["digits", "--rule", "auto", "--width", "0.25", "--steps", "2", "--batch-size", "8", "--budget", "7MB"]
    assert plan([*options, "--stages", "2", "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert [stage["subnetworks"] for stage in stages] == [[1], [2]]
    assert all(stage["rank_bytes"] <= 7e6 for stage in stages)
    assert sum(stage["peak_bytes"] for stage in stages) > 7e6


def test_time_steps_run_one_by_one_where_stages_need_the_room(monkeypatch):
    recipe = replace(RECIPES["digits"], width=0.0625, batch_size=8, steps=2, rule="ell", budget="30MB")

    def made(recipe: Recipe) -> Rule:
        torch.manual_seed(0)
        return rule_on_stages(recipe, 2, Shards(), build_network(recipe), sample_batch(recipe, torch.device("cpu")), 1)

    assert made(recipe).plan.chunk == 2
    measure = rank_plan.forecast

    def crowded(rule: Rule, *arguments, **options):
        if rule.plan.chunk > 1:
            raise OverBudget("batches that wait take the rest")
        return measure(rule, *arguments, **options)

    monkeypatch.setattr(rank_plan, "forecast", crowded)
    rule, same = made(recipe), made(replace(recipe, chunk=1))
    assert rule.plan.chunk == 1
    assert_same_state(rule.state_dict(), same.state_dict(), "the rule")  # its heads are drawn as in one process


def test_a_budget_that_no_stage_keeps_to(capsys):
    assert plan([*TOO_LARGE_FOR_ONE, "--budget", "4MB", "--stages", "2"]) == 2
    assert "the subnetworks do not fit onto 2 stages within 4.00 MB per rank" in capsys.readouterr().err


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_all_and_the_rest_goes_on_anywhere(alone, tmp_path, capsys, victim):
    out = tmp_path / "run"
    codes = run(2, train, [*SMALL, "--stages", "2", "--out", str(out)], 6, victim, expect_errors=True)
    assert codes == [-signal.SIGKILL if rank == victim else 2 for rank in range(2)]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stdl_engine.train:")]
    assert len(said) == 1
    assert f"rank {victim} ended or hangs without a message" in said[0]
    assert not list(out.glob("*.tmp*"))
    assert state_of(out)["epoch"] == 1
    if victim:
        run(3, train, ["--resume", str(out), "--stages", "3"])
    else:
        assert main(["--resume", str(out)]) == 0  # on one process
    assert_same_run(alone, out)
    row = state_of(out)["rows"][-1]
    assert row["peak_bytes"] == row["predicted_bytes"]  # of what is trained here now, not before


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("shared") / "run"
    run(2, train, [*SMALL, "--sync-norm", "--out", str(out)])
    return out


def test_a_killed_rank_that_shares_batches(shared, tmp_path, capsys):
    out = tmp_path / "run"
    codes = run(2, train, [*SMALL, "--sync-norm", "--out", str(out)], 6, expect_errors=True)
    assert codes == [2, -signal.SIGKILL]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stdl_engine.train:")]
    assert len(said) == 1
    assert "rank 1 ended or hangs without a message" in said[0]
    assert state_of(out)["epoch"] == 1
    run(2, train, ["--resume", str(out)])
    assert_same_run(shared, out)


@pytest.mark.parametrize("options", [["--sync-norm"], ["--stages", "2"]], ids=["data ranks", "stages"])
def test_a_rank_that_hangs_ends_all(options, tmp_path, capsys):
    out = tmp_path / "run"
    started = time.monotonic()
    arguments = [*SMALL, *options, "--timeout", "12", "--out", str(out)]
    codes = run(2, train, arguments, 1, 1, True, expect_errors=True)
    assert codes == [2, -signal.SIGKILL]  # the second after it has hung for longer than anyone waits
    assert time.monotonic() - started < 150
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stdl_engine.train:")]
    assert len(said) == 1
    assert "rank 1 did not answer in time, and does not wait for another rank" in said[0]
    assert not list(out.glob("*.tmp*"))
    assert state_of(out)["epoch"] == 0  # what was written before the first batch


def test_two_ranks_share_a_run(alone, shared):
    out = shared
    for one, other in zip(state_of(alone)["rows"], state_of(out)["rows"], strict=True):
        assert other["samples"] == one["samples"]
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=0.05)
    assert state_of(out)["batch"] == 0


def test_an_error_of_one_rank_is_said_once(tmp_path, capsys):
    out = tmp_path / "run"
    codes = run(2, train, [*SMALL, "--rule", "bptt", "--stages", "2", "--out", str(out)], expect_errors=True)
    assert codes == [2, 2]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stdl_engine.train:")]
    assert len(said) == 1
    assert "2 stages were asked for, and the network is cut into 1 subnetwork" in said[0]
    assert not out.exists()


def test_stages_without_torchrun_are_refused(capsys):
    assert main(["digits", "--stages", "2"]) == 2
    assert "torchrun --nproc-per-node 2" in capsys.readouterr().err
