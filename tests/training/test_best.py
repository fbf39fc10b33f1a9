"""The best weights are kept, chosen on samples that are neither trained nor tested on if such are asked for."""

import json

import pytest
import torch

import stdl_engine
from stdl_engine import checkpoints, evaluate, scoring
from stdl_engine.runs import best_row
from stdl_engine.train import main


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def evaluated(capsys, *arguments):
    capsys.readouterr()
    assert evaluate.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def declining(monkeypatch):
    """Accuracies as they are not: the second epoch is the best on validation, the third on the test set."""
    from stdl_engine import trainer

    scores = {"test": [0.1, 0.2, 0.9, 0.3], "validation": [0.1, 0.8, 0.3, 0.8]}
    real = trainer.score

    def score(model, batches, recipe, device, **how):
        import dataclasses

        name = "test" if len(batches.source) == 24 else "validation"
        return dataclasses.replace(real(model, batches, recipe, device, **how), accuracy=scores[name].pop(0))

    monkeypatch.setattr(trainer, "score", score)


@pytest.mark.parametrize(("options", "best", "chosen_on"), [([], 3, "test"), (["--validate", 0.25], 2, "validation")])
def test_the_weights_of_the_best_epoch(train, tmp_path, declining, options, best, chosen_on, monkeypatch):
    kept = {}
    from stdl_engine.trainer import Trainer

    original = Trainer.save
    monkeypatch.setattr(
        Trainer,
        "save",
        lambda self: (
            kept.update({self.epoch: {k: v.clone() for k, v in self.rule.model.state_dict().items()}}) or original(self)
        ),
    )
    out = tmp_path / "run"
    assert train("--epochs", 4, *options, "--out", out)[0] == 0
    assert len(checkpoints.saved(out, "best")) == 1
    weights = stdl_engine.load(out, best=True).state_dict()
    assert all(torch.equal(weights[key], kept[best][key]) for key in weights)
    last = stdl_engine.load(out).state_dict()
    assert all(torch.equal(last[key], kept[4][key]) for key in last)
    assert not all(torch.equal(last[key], weights[key]) for key in last)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["best_epoch"], summary["best_chosen_on"]) == (best, chosen_on)
    assert summary["best_test_accuracy"] == rows_of(out)[best - 1]["test_accuracy"]
    assert summary["test_accuracy"] == 0.3


@pytest.mark.parametrize("chunk", [1, 2])
def test_evaluate(train, tmp_path, capsys, monkeypatch, chunk):
    """The very numbers of training, in which convolutions round by how many time steps run together in bfloat16."""
    together, mean_logits = [], scoring.mean_logits
    monkeypatch.setattr(
        scoring, "mean_logits", lambda *given, **how: together.append(how["chunk"]) or mean_logits(*given, **how)
    )
    options = ["--precision", "bf16", "--chunk", chunk, "--validate", 0.25]
    train("--epochs", 2, *options, "--out", tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    for kind, option, row in (("best-", ["--best"], best_row(rows)), ("checkpoint-", [], rows[-1])):
        found = evaluated(capsys, tmp_path / "run", *option)
        assert found["checkpoint"].startswith(kind)
        assert (found["test_accuracy"], found["test_loss"]) == (row["test_accuracy"], row["test_loss"])
        assert found["firing_rates"] == row["firing_rates"]
    assert set(together) == {chunk}


def test_a_resumed_run_keeps_its_best(train, tmp_path, declining, monkeypatch):
    """Killed after its third epoch, of which the second is the best."""
    out = tmp_path / "run"
    original, calls = checkpoints.save, []

    def save(folder, batches, state):
        path = original(folder, batches, state)
        calls.append(batches)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return path

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", save)
        with pytest.raises(KeyboardInterrupt):
            train("--epochs", 4, "--validate", 0.25, "--out", out)
    assert main(["--resume", str(out)]) == 0
    assert json.loads((out / "summary.json").read_text())["best_epoch"] == 2
    assert [checkpoints.load(path)["epoch"] for path in checkpoints.saved(out, "best")] == [2]


def test_no_best_yet(tmp_path, train, capsys):
    train("--epochs", 1, "--out", tmp_path / "run")
    for path in checkpoints.saved(tmp_path / "run", "best"):
        path.unlink()
    assert evaluate.main([str(tmp_path / "run"), "--best"]) == 2
    assert "has no best weights" in capsys.readouterr().err


def test_no_share_is_left_to_train_on(train, tmp_path):
    code, _, complaints = train("--validate", 0.9, "--out", tmp_path / "run")
    assert code == 2
    assert "batch_size is 16 and the training set has 6 samples" in complaints
    assert not (tmp_path / "run").exists()
