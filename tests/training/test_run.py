"""A run from its command to its folder."""

import json
import math

import numpy as np
import pytest
import torch

import stdl_engine
from stdl_engine import evaluate
from stdl_engine.building import predict_peak
from stdl_engine.checkpoints import load_last
from stdl_engine.recipes import RECIPES, from_dict
from stdl_engine.rules import RULES

SUMMARY = [
    "recipe", "rule", "seed", "test_accuracy", "best_test_accuracy", "best_epoch", "best_chosen_on", "epochs",
    "samples_per_second", "process_peak_bytes", "process_growth_bytes", "predicted_bytes", "peak_bytes", "parameters",
    "commit", "versions",
]  # fmt: skip


def weights(folder):
    _, state, _ = load_last(folder)
    return state["rule"]["model"]


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[key], other[key]) for key in one)


class TestFolder:
    def test_explains_itself(self, train, tmp_path):
        out = tmp_path / "run"
        code, printed, complaints = train("--epochs", 3, "--out", out)
        assert (code, complaints) == (0, "")
        summary = json.loads((out / "summary.json").read_text())
        assert list(summary) == SUMMARY
        assert (summary["recipe"], summary["rule"], summary["epochs"]) == ("digits", "stdl", 3)
        assert summary["versions"]["torch"] == torch.__version__.partition("+")[0]
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert [row["epoch"] for row in rows] == [1, 2, 3]
        assert rows[-1]["train_loss"] < rows[0]["train_loss"]
        assert summary["test_accuracy"] == rows[-1]["test_accuracy"]
        assert all(row["samples"] == 64 and row["peak_bytes"] == summary["peak_bytes"] for row in rows)
        assert (out / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert list((out / "tensorboard").glob("events.out.tfevents.*"))
        assert "4C3-4R" in (out / "plan.txt").read_text()
        assert "epoch 3/3" in printed
        assert str(out) in printed

    def test_config_is_the_recipe_with_what_was_changed(self, train, tmp_path):
        train("--epochs", 1, "--out", tmp_path / "run", "--rule", "sltt", "--decay", 0.3)
        config = from_dict(json.loads((tmp_path / "run" / "config.json").read_text()))
        assert (config.rule, config.decay, config.epochs, config.dataset) == ("sltt", 0.3, 1, "npz")
        assert (config.in_shape, config.num_classes) == ((1, 8, 8), 2)  # of the data
        assert config.weight_decay == RECIPES["digits"].weight_decay

    def test_checkpoints_are_the_last_two(self, train, tmp_path):
        train("--epochs", 4, "--out", tmp_path / "run")
        names = sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*"))
        assert [name.rpartition("-")[0] for name in names] == ["checkpoint-000012", "checkpoint-000016"]
        assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]

    def test_peak_is_the_planners(self, train, tmp_path):
        for layout in ("--channels-last", "--no-channels-last"):
            train("--epochs", 1, "--out", tmp_path / layout, layout)
            summary = json.loads((tmp_path / layout / "summary.json").read_text())
            recipe = from_dict(json.loads((tmp_path / layout / "config.json").read_text()))
            assert summary["peak_bytes"] == predict_peak(recipe).peak_bytes


@pytest.mark.parametrize("rule", RULES)
def test_every_rule(train, tmp_path, rule):
    code, _, complaints = train("--epochs", 1, "--rule", rule, "--out", tmp_path / "run")
    assert (code, complaints) == (0, "")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rule"] == rule


def test_same_seed_same_weights(train, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train("--epochs", 1, "--seed", seed, "--out", tmp_path / name)
    a, b, c = (weights(tmp_path / name) for name in "abc")
    assert same(a, b)
    assert not same(a, c)


def test_events(train, tmp_path):
    """Embedded event data through the whole command, on a few samples."""
    settings = ["--epochs", 1, "--width", 0.0625, "--batch-size", 500, "--steps", 2, "--out", tmp_path / "run"]
    code, _, complaints = train(*settings, recipe="digits-events", quick=False)
    assert (code, complaints) == (0, "")


def write_recordings(root):
    """Events of two classes, which lie in the left or in the right half of a sensor of 16 × 12 pixels."""
    random = np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 4)):
        for label, name in enumerate(("left", "right")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                x, y = random.integers(0, 8, 200) + 8 * label, random.integers(0, 12, 200)
                t, p = np.sort(random.integers(0, 10_000, 200)), random.integers(0, 2, 200)
                np.save(folder / f"{number}.npy", np.stack([x, y, t, p], 1))


def test_recordings_of_ones_own(train, tmp_path, capsys):
    """Classes and sensor are the data's; what only recordings have reaches them, and is part of the run."""
    write_recordings(tmp_path / "camera")
    own = ["--dataset", "event-folder", "--data", tmp_path / "camera", "--columns", "xytp"]
    settings = [*own, "--batch-size", 4, "--epochs", 1, "--split-by", "time", "--budget", 1]
    code, _, complaints = train(*settings, "--sensor", "18x12", "--out", tmp_path / "run")
    assert (code, complaints) == (0, "")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["in_shape"], config["num_classes"], config["events"]) == ([2, 12, 18], 2, True)
    assert (config["split_by"], config["sensor"], config["columns"]) == ("time", "18x12", "xytp")
    assert (tmp_path / "camera" / "frames_T2_by_time").is_dir()
    assert evaluate.main([str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 8
    for options, says in (
        (["--sensor", "10x12"], "outside 10 × 12 pixels"),
        (["--sensor", "wide"], "sensor is 'wide': write its width and height"),
        (["--split-by", "size"], "invalid choice"),
        (["--columns", "abcd"], "columns is 'abcd': write t, x, y and p"),
        (["--size", 8], "event-folder has no option 'size'"),
    ):
        code, _, complaints = train(*settings, *options, "--out", tmp_path / "other")
        assert code == 2
        assert says in complaints
        assert len(complaints.splitlines()) == 1


def test_frames_of_ones_own(train, tmp_path):
    x, y = np.random.default_rng(0).poisson(0.3, (32, 2, 2, 8, 8)).astype(np.uint8), np.arange(32) % 2
    np.savez(tmp_path / "frames.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    code, _, complaints = train("--data", tmp_path / "frames.npz", "--epochs", 1, "--out", tmp_path / "run")
    assert (code, complaints) == (0, "")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["in_shape"], config["num_classes"], config["events"]) == ([2, 8, 8], 2, True)


class TestAfterwards:
    def test_evaluate_gives_the_runs_accuracy(self, train, tmp_path, capsys):
        train("--epochs", 2, "--out", tmp_path / "run")
        assert evaluate.main([str(tmp_path / "run"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["test_accuracy"] == json.loads((tmp_path / "run" / "summary.json").read_text())["test_accuracy"]
        assert found["samples"] == 24

    def test_load_gives_the_plain_network(self, train, tmp_path):
        train("--epochs", 1, "--out", tmp_path / "run")
        model = stdl_engine.load(tmp_path / "run")
        assert same(dict(model.state_dict()), weights(tmp_path / "run"))
        assert not model.training
        assert model(torch.rand(2, 1, 8, 8)).shape == (2, 2)

    def test_second_stage_starts_from_the_first(self, train, tmp_path):
        train("--epochs", 1, "--out", tmp_path / "first")
        begun = ["--start-from", tmp_path / "first", "--lr", 1e-12, "--weight-decay", 0]
        train("--epochs", 1, *begun, "--out", tmp_path / "second")
        first, second = weights(tmp_path / "first"), weights(tmp_path / "second")
        learned = [key for key in first if first[key].is_floating_point() and "running" not in key]
        assert all(torch.allclose(first[key], second[key], atol=1e-9) for key in learned)
        code, _, complaints = train(
            "--epochs", 1, "--start-from", tmp_path / "first", "--width", 0.125, "--out", tmp_path / "third"
        )
        assert code == 2
        assert "the weights to start from do not fit the network" in complaints


def test_comparison(train, tmp_path):
    code, printed, _ = train("--epochs", 1, "--compare", "bptt", "stdl", "--out", tmp_path / "both")
    assert code == 0
    found = json.loads((tmp_path / "both" / "comparison.json").read_text())
    assert [summary["rule"] for summary in found] == ["bptt", "stdl"]
    assert (tmp_path / "both" / "bptt" / "summary.json").exists()
    ratio = found[1]["peak_bytes"] / found[0]["peak_bytes"]
    assert f"{ratio:.2f}" in printed
    table = (tmp_path / "both" / "comparison.md").read_text()
    assert f"| {ratio:.2f} |" in table
    assert "| BPTT |" in table


def test_recipes_are_listed(train):
    code, printed, _ = train("--list", recipe=None, quick=False)
    assert code == 0
    assert all(name in printed for name in RECIPES)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision(train, tmp_path, precision, monkeypatch):
    code, _, complaints = train("--epochs", 1, "--precision", precision, "--out", tmp_path / "run")
    assert (code, complaints) == (0, "")
    _, state, _ = load_last(tmp_path / "run")
    assert len(state["rule"]["scalers"]) == (3 if precision == "fp16" else 0)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert math.isfinite(row["train_loss"])
