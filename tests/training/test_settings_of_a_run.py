"""A run goes on with its own settings and on its own data, or says what differs."""

import json
import shutil

import numpy as np
import pytest
import torch

from stdl_engine import checkpoints, evaluate
from stdl_engine.train import main

from .conftest import QUICK, write_data


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that is copied for each test."""
    folder = tmp_path_factory.mktemp("trained")
    settings = [*QUICK, "--data", str(write_data(folder / "data.npz")), "--epochs", "1"]
    assert main(["digits", *settings, "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def run(trained, data, tmp_path):
    """A run and its data, to spoil."""
    shutil.copytree(trained, tmp_path / "run")
    edit_config(tmp_path / "run", data=str(data))
    return tmp_path / "run"


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def complaint(capsys, *arguments):
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 1}, "seed 0 there and 1 here"),
        ({"lr": 0.1}, "lr 0.05 there and 0.1 here"),
        ({"batch_size": 8}, "batch_size 16 there and 8 here"),
        ({"steps": 3}, "steps 2 there and 3 here"),
        ({"optimizer": "adamw"}, "optimizer sgd there and adamw here"),
        ({"width": 0.125, "epochs": 2}, "width 0.0625 there and 0.125 here; epochs 1 there and 2 here"),
    ],
    ids=str,
)
def test_another_runs_checkpoint(run, capsys, changes, says):
    """Whether settings were edited or a checkpoint was copied here, they differ."""
    edit_config(run, **changes)
    line = complaint(capsys, "--resume", run)
    assert f"was made with other settings than config.json has ({says}): put the settings back" in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Expecting property name"),
        ("[]", "it holds no settings by name"),
        ('{"name": "x"}', "a recipe needs dataset, in_shape, num_classes, model, steps, epochs, batch_size, lr, "),
        ('{"nme": "x"}', "a recipe has no setting 'nme': did you mean 'name'?"),
        ("\x00", "Expecting value"),
    ],
)
def test_a_config_that_is_none(run, capsys, text, says):
    (run / "config.json").write_text(text)
    assert f"config.json is not what a run writes ({says}" in complaint(capsys, "--resume", run)
    assert evaluate.main([str(run)]) == 2
    assert says in capsys.readouterr().err


def test_a_setting_that_cannot_be(run, capsys):
    edit_config(run, steps="four")
    assert "(steps is 'four': it must be a whole number.)" in complaint(capsys, "--resume", run)


class TestData:
    def test_other_samples(self, run, data, capsys):
        write_data(data, seed=1)
        assert f"the data in {data} is not what this run was begun on" in complaint(capsys, "--resume", run)

    def test_other_shapes(self, run, data, capsys):
        x, y = np.zeros((64, 9, 9, 1), np.uint8), np.arange(64) % 2
        np.savez(data, x_train=x, y_train=y, x_test=x, y_test=y)
        assert "--in-shape says (1, 8, 8) and the data has (1, 9, 9)" in complaint(capsys, "--resume", run)

    def test_moved(self, run, data, tmp_path, capsys):
        """Where the data lies, how many processes read it and what the run is on may change."""
        moved = data.rename(tmp_path / "elsewhere.npz")
        assert main(["--resume", str(run)]) == 2
        capsys.readouterr()
        assert main(["--resume", str(run), "--data", str(moved), "--workers", "0", "--device", "cpu"]) == 0

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["--compile"], "leave --compile out"),
            (["--lr", "1"], "leave --lr out"),
            (["--no-channels-last", "--data", "x"], "leave --channels-last out"),
            (["--out", "x"], "leave --out out"),
        ],
    )
    def test_other_options_are_refused(self, run, capsys, options, says):
        line = complaint(capsys, f"--resume={run}", *options)
        assert "--resume continues with a run's own settings" in line
        assert says in line

    def test_a_recipe_is_refused(self, run, capsys):
        assert "leave a recipe out" in complaint(capsys, "digits", "--resume", run)


class TestCheckpointsThatLack:
    @pytest.mark.parametrize("key", ["config", "data", "rule", "epoch", "batch", "meter", "rows", "rng", "peak_bytes"])
    def test_a_key(self, run, capsys, key):
        (path,) = checkpoints.saved(run)
        state = checkpoints.load(path)
        del state[key]
        path.unlink()
        checkpoints._write(run, "checkpoint", 4, state)
        line = complaint(capsys, "--resume", run)
        assert f"is no checkpoint of a run: it lacks {key}." in line

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("meter", lambda state: state["meter"].update(smaples=1)),
            ("optimizers", lambda state: state["rule"]["optimizers"][0]["param_groups"][0].pop("params")),
            ("model", lambda state: state["rule"]["model"].pop("0.conv.weight")),
            ("rows", lambda state: state["rows"][0].pop("train_loss")),
            ("rng", lambda state: state.update(rng=torch.zeros(3))),
        ],
    )
    def test_something_deeper(self, run, capsys, name, change):
        (path,) = checkpoints.saved(run)
        state = checkpoints.load(path)
        change(state)
        path.unlink()
        checkpoints._write(run, "checkpoint", 4, state)
        assert "checkpoint" in complaint(capsys, "--resume", run)


class TestStated:
    """What the data decides may be said, if it is so."""

    def test_right(self, train, tmp_path):
        stated = ["--in-shape", 1, 8, 8, "--num-classes", 2, "--no-events"]
        assert train("--epochs", 1, *stated, "--out", tmp_path / "run")[0] == 0

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["--events"], "--events says True and the data has False: leave it out, the data decides."),
            (["--in-shape", "3", "8", "8"], "--in-shape says (3, 8, 8) and the data has (1, 8, 8)"),
            (["--num-classes", "10"], "--num-classes says 10 and the data has 2"),
        ],
    )
    def test_wrong(self, train, tmp_path, options, says):
        code, _, complaints = train("--epochs", 1, *options, "--out", tmp_path / "run")
        assert code == 2
        assert says in complaints
        assert not (tmp_path / "run").exists()


class TestConfig:
    def test_a_runs_own(self, run, tmp_path, capsys):
        """The same settings again are the same run."""
        assert main(["--config", str(run / "config.json"), "--out", str(tmp_path / "again")]) == 0
        ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (run, tmp_path / "again"))
        assert ours == theirs
        one, other = (checkpoints.load_last(folder)[1]["rule"]["model"] for folder in (run, tmp_path / "again"))
        assert all(torch.equal(one[key], other[key]) for key in one)

    def test_toml_over_a_recipe_and_options_over_both(self, train, tmp_path):
        file = tmp_path / "my.toml"
        file.write_text('name = "mine"\nrule = "sltt"\nlr = 1\nepochs = 5\n')
        code, _, complaints = train("--config", file, "--epochs", 1, "--out", tmp_path / "run")
        assert (code, complaints) == (0, "")
        config = json.loads((tmp_path / "run" / "config.json").read_text())
        assert (config["name"], config["rule"], config["epochs"]) == ("mine", "sltt", 1)
        assert config["lr"] == 0.05  # from the command line of these tests

    @pytest.mark.parametrize(
        ("name", "text", "says"),
        [
            ("c.toml", "lr = ", "is not TOML"),
            ("c.json", "lr = 1", "is not JSON"),
            ("c.json", "[1]", "holds a list: it must hold settings by name"),
            ("c.toml", "learning_rate = 1", "a recipe has no setting 'learning_rate'"),
            ("c.toml", "epochs = 0", "epochs is 0: it must be 1 or more"),
            ("c.toml", 'epochs = "many"', "epochs is 'many': it must be a whole number"),
        ],
    )
    def test_files_that_are_none(self, train, tmp_path, name, text, says):
        (tmp_path / name).write_text(text)
        code, _, complaints = train("--config", tmp_path / name, "--out", tmp_path / "run")
        assert code == 2
        assert says in complaints
        assert len(complaints.splitlines()) == 1

    def test_no_file(self, train, tmp_path):
        code, _, complaints = train("--config", tmp_path / "none.toml")
        assert code == 2
        assert "cannot read the config" in complaints
