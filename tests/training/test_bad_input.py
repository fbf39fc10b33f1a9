"""What a user gets wrong: one sentence, and nothing written."""

import numpy as np
import pytest

from stdl_engine import evaluate


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rule", "magic"], "unknown rule 'magic': choose from bptt, "),
        (["--dataset", "mnist99"], "unknown dataset 'mnist99': choose from digits, "),
        (["--model", "resnet99"], "unknown model 'resnet99': choose from resnet18, "),
        (["--neuron", "hodgkin"], "unknown neuron 'hodgkin': choose from lif, "),
        (["--epochs", "0"], "--epochs is 0: it must be 1 or more"),
        (["--batch-size", "1"], "--batch-size is 1: it must be 2 or more"),
        (["--batch-size", "65"], "batch_size is 65 and the training set has 64 samples"),
        (["--steps", "0"], "--steps is 0: it must be 1 or more"),
        (["--seed", "-1"], "--seed is -1: it must be 0 or more"),
        (["--budget", "lots"], "cannot read the budget 'lots'"),
        (["--budget", "0.01"], "the smallest budget that works is"),
        (["--rule", "sltt", "--budget", "0.5"], "is '0.5', which only the rule stdl takes, and the rule is sltt"),
        (["--device", "abacus"], "unknown device 'abacus'"),
        (["--device", "cuda:99"], "the device 'cuda:99' was asked for, and there are"),
        (["--data", "nowhere.npz"], "nowhere.npz"),
        (["--start-from", "nowhere"], "nowhere is no folder of a run"),
        (["--compare", "bptt", "magic"], "unknown rule 'magic'"),
        (["--compare", "bptt", "bptt"], "a rule is named twice"),
        (["--resume", "nowhere"], "--resume continues with a run's own settings"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_one_sentence(train, tmp_path, arguments, says):
    code, _, complaints = train(*arguments, "--out", tmp_path / "run")
    assert code == 2
    assert says in complaints
    assert complaints.startswith("stdl_engine.train: ")
    assert len(complaints.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_unknown_recipe(train):
    code, _, complaints = train(recipe="cifar11", quick=False)
    assert code == 2
    assert "unknown recipe 'cifar11': choose from digits, " in complaints


def test_unknown_option(train):
    code, _, complaints = train("--learning-rate", "3")
    assert code == 2
    assert "Unrecognized options: --learning-rate, 3 (--help lists the options)." in complaints


def test_second_stage_without_the_first(train):
    code, _, complaints = train(recipe="imagenet", quick=False)
    assert code == 2
    assert "train that first, and pass its folder as --start-from" in complaints


def test_a_folder_with_a_run(train, tmp_path):
    assert train("--epochs", 1, "--out", tmp_path / "run")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    code, _, complaints = train("--epochs", 1, "--out", tmp_path / "run")
    assert code == 2
    assert "holds a run already: continue it with --resume" in complaints
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_that_cannot_be_written(train, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, _, complaints = train("--epochs", 1, "--out", tmp_path / "file" / "run")
    assert code == 2
    assert "cannot write to" in complaints


def test_resume_of_nothing(tmp_path, capsys):
    from stdl_engine.train import main

    assert main(["--resume", str(tmp_path)]) == 2
    assert "is no folder of a run" in capsys.readouterr().err


def test_evaluate_on_other_data(train, tmp_path, capsys):
    train("--epochs", 1, "--out", tmp_path / "run")
    other = tmp_path / "other.npz"
    x, y = np.zeros((8, 9, 9, 1), np.uint8), np.arange(8) % 2
    np.savez(other, x_train=x, y_train=y, x_test=x, y_test=y)
    assert evaluate.main([str(tmp_path / "run"), "--data", str(other)]) == 2
    assert "pass the same data by --data" in capsys.readouterr().err
