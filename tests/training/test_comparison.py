"""Rules side by side: one seed or several, and a comparison that was killed."""

import json
import statistics

import pytest

from stdl_engine import comparison
from stdl_engine import train as train_module
from stdl_engine.comparison import ComparisonFolder, lines, mean_and_deviation
from stdl_engine.curves import draw_together
from stdl_engine.train import main

PNG = b"\x89PNG\r\n\x1a\n"


def test_several_seeds(train, tmp_path):
    out = tmp_path / "both"
    code, printed, complaints = train(
        "--epochs", 1, "--compare", "bptt", "stdl", "--seeds", 2, "--seed", 5, "--out", out
    )
    assert (code, complaints) == (0, "")
    summaries = json.loads((out / "comparison.json").read_text())
    assert [(s["rule"], s["seed"]) for s in summaries] == [("bptt", 5), ("bptt", 6), ("stdl", 5), ("stdl", 6)]
    assert {path.name for path in out.iterdir() if path.is_dir()} == {
        "bptt-seed-5", "bptt-seed-6", "stdl-seed-5", "stdl-seed-6",
    }  # fmt: skip
    accuracies = [s["test_accuracy"] for s in summaries if s["rule"] == "stdl"]
    expected = f"{statistics.fmean(accuracies):.2%} ± {100 * statistics.stdev(accuracies):.2f}"
    assert f"| STDL | {expected} |" in (out / "comparison.md").read_text()
    assert "seeds 5 to 6" in (out / "comparison.md").read_text()
    assert (out / "comparison.png").read_bytes()[:8] == PNG
    assert "saved in" in (out / "log.txt").read_text()
    assert max(map(len, (line for line in printed.splitlines() if "│" in line))) <= 80


class TestKilled:
    @pytest.fixture
    def killed(self, train, tmp_path, monkeypatch):
        """Stopped in the second of three rules, after that rule's first epoch."""
        from stdl_engine.trainer import Trainer

        original = Trainer._run_epoch

        def run_epoch(self, board):
            if self.recipe.rule == "sltt" and self.epoch == 1:
                raise KeyboardInterrupt
            original(self, board)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_run_epoch", run_epoch)
            with pytest.raises(KeyboardInterrupt):
                train("--epochs", 2, "--compare", "bptt", "sltt", "stdl", "--out", tmp_path / "all")
        return tmp_path / "all"

    def test_it_goes_on_where_it_was(self, killed, monkeypatch, capsys):
        before = (killed / "bptt" / "summary.json").read_bytes()
        began = []
        original = train_module.finish
        monkeypatch.setattr(train_module, "finish", lambda t: began.append((t.recipe.rule, t.epoch)) or original(t))
        assert main(["--resume", str(killed)]) == 0
        assert began == [("sltt", 1), ("stdl", 0)]
        assert (killed / "bptt" / "summary.json").read_bytes() == before
        assert [s["rule"] for s in json.loads((killed / "comparison.json").read_text())] == ["bptt", "sltt", "stdl"]
        assert "finished before" in capsys.readouterr().out

    def test_it_is_not_overwritten(self, killed, train):
        code, _, complaints = train("--epochs", 2, "--compare", "bptt", "--out", killed)
        assert code == 2
        assert "holds a comparison already: continue it with --resume" in complaints
        code, _, complaints = train("--epochs", 2, "--out", killed)
        assert code == 2
        assert "holds a comparison already" in complaints

    def test_options_are_refused(self, killed, capsys):
        assert main(["--resume", str(killed), "--workers", "0"]) == 2
        assert "holds a comparison, which continues with its own settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--compare", "bptt", "--rule", "sltt"], "--compare names the rules itself: leave --rule out"),
        (["--seeds", "2"], "--seeds is for --compare"),
        (["--compare", "--seeds", "0"], "--seeds is 0: it must be 1 or more"),
        (["--compare", "bptt", "magic"], "unknown rule 'magic'"),
        (["--compare", "bptt", "bptt"], "a rule is named twice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_one_sentence(train, tmp_path, options, says):
    code, _, complaints = train(*options, "--out", tmp_path / "x")
    assert code == 2
    assert says in complaints
    assert not (tmp_path / "x").exists()


def test_a_budget_is_stdls_whatever_the_recipes_rule(tmp_path, monkeypatch):
    """`imagenet-bptt` trains by BPTT; compared with STDL, a budget is for that one."""
    seen = []

    def compare(folder, *_):
        seen.extend((own.rule, own.budget) for own, _ in folder.runs())

    monkeypatch.setattr(train_module, "compare", compare)
    out = str(tmp_path / "x")
    assert main(["imagenet-pretrain-bptt", "--compare", "bptt", "stdl", "--budget", "0.6", "--out", out]) == 0
    assert seen == [("bptt", None), ("stdl", "0.6")]


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "compare.json").write_text('{"rules": ["bptt"]}')
    with pytest.raises(ValueError, match="is not what a comparison writes"):
        ComparisonFolder.open(tmp_path).settings()
    (tmp_path / "summary.json").write_text("[]")
    with pytest.raises(ValueError, match="is not what a run writes"):
        comparison._read_summary(tmp_path / "summary.json")
    for content in ("{", "[]", '{"epoch": 1}', "[" * 100_000):
        (tmp_path / "metrics.jsonl").write_text(content)
        with pytest.raises(ValueError, match=r"metrics\.jsonl is not what a run writes"):
            comparison._read_metrics(tmp_path / "metrics.jsonl")


def test_mean_and_deviation():
    assert mean_and_deviation([0.5]) == "50.00%"
    assert mean_and_deviation([0.5, 0.6, 0.7]) == "60.00% ± 10.00"


def test_lines_without_bptt_have_no_ratios():
    summary = {"rule": "stdl", "test_accuracy": 0.5, "peak_bytes": 1e6, "samples_per_second": 10}
    assert lines([summary]) == [("STDL", "50.00%", "1.00 MB", "10", "", "")]
    bptt = summary | {"rule": "bptt", "peak_bytes": 4e6}
    assert lines([summary, bptt])[0][-2:] == ("0.25", "1.00")


def test_joint_picture():
    rows = [{"epoch": n, "train_loss": 1 / n, "test_accuracy": 0.1 * n} for n in (1, 2, 3)]
    assert draw_together({"bptt": [rows, rows], "stdl": [rows]}, "t")[:8] == PNG
