"""Whatever is typed: a command does it, or says in one sentence what is wrong, and leaves nothing behind."""

import io
import json
import random
import sys
from dataclasses import fields

import pytest

from stdl_engine import evaluate, plan, train
from stdl_engine.recipes import Recipe

VALUES = (
    "", " ", "0", "-1", "1", "2", "3.5", "1e12", "1" + 30 * "0", "1e400", "nan", "inf", "-inf", "None", "True", "x",
    "ü", "a:b", "../..", "/dev/null", "/", "\x00", "0x10", "1_000", "1,5", "--", "-", "[1]", "sgd", "digits", "2GiB",
)  # fmt: skip
NAMES = [field.name.replace("_", "-") for field in fields(Recipe)]
FLAGS = {f.name.replace("_", "-") for f in fields(Recipe) if f.type == "bool"}
OTHERS = {
    "train": ("out", "resume", "compare", "seeds", "config", "list"),
    "plan": ("compare", "fit", "config", "json"),
    "evaluate": ("data", "steps", "batch-size", "device", "best", "json"),
}


class Reached(Exception):
    """Everything was in order so far, and the work would begin now."""


@pytest.fixture
def no_work(monkeypatch, tmp_path):
    """Commands end where the work begins."""

    def begin(*args, **options):
        raise Reached

    monkeypatch.setattr(train, "Trainer", begin)
    monkeypatch.setattr(plan, "predict_peak", begin)
    monkeypatch.setattr(evaluate, "trained_network", begin)
    monkeypatch.chdir(tmp_path)


def typed(draw, command):
    """A command line of a few options with strange values."""
    line = [draw.choice(["digits", "digits-events", "resnet18", "nonsense", "svhn"])] if draw.random() < 0.8 else []
    for _ in range(draw.choice([1, 1, 2, 3])):
        name = draw.choice([*NAMES, *OTHERS[command]] if command != "evaluate" else OTHERS[command])
        form = draw.random()
        if name in FLAGS or form < 0.1:
            line.append(f"--{draw.choice(['', 'no-'])}{name}")
        elif form < 0.4:
            line.append(f"--{name}={draw.choice(VALUES)}")
        else:
            line += [f"--{name}", *(draw.choice(VALUES) for _ in range(3 if name == "in-shape" else 1))]
    return line


@pytest.mark.parametrize("command", [train, plan, evaluate], ids=lambda command: command.__name__.rpartition(".")[2])
@pytest.mark.parametrize("seed", range(60))
def test_one_sentence_and_nothing_left(no_work, command, seed, tmp_path, capsys):
    line = typed(random.Random(seed), command.__name__.rpartition(".")[2])
    try:
        code = command.main(line)
    except Reached:
        code = 0
    complaints = capsys.readouterr().err
    assert code in (0, 2), line
    if code == 2:
        assert len(complaints.splitlines()) == 1, line
        assert complaints.startswith(f"{command.__name__.replace('stdl_engine.', 'stdl_engine.')}: ")
        assert "Traceback" not in complaints
    assert list(tmp_path.iterdir()) == [], line


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--width", "inf"], "--width is inf: it must be 100 or less."),
        (["--width", "nan"], "--width is nan: it must be a number from 0.001 to 100."),
        (["--width", "1e-9"], "--width is 1e-09: it must be 0.001 or more."),
        (["--steps", "1000000000"], "--steps is 1000000000: it must be 10000 or less."),
        (["--batch-size", "1000000000000"], "--batch-size is 1000000000000: it must be 10000000 or less."),
        (["--lr", "inf"], "--lr is inf: it must be 1e30 or less."),
        (["--lr", "nan"], "--lr is nan"),
        (["--lr", "-1"], "--lr is -1.0: it must be 0 or more."),
        (["--epochs", "-3"], "--epochs is -3: it must be 1 or more."),
        (["--epochs", "x"], "Error parsing --epochs"),
        (["--epochs"], "Missing value for argument '--epochs'"),
        (["--epoch", "1"], "Unrecognized options: --epoch, 1, perhaps you meant --epochs"),
        (["--seed", "-1"], "--seed is -1: it must be 0 or more."),
        (["--seed", "99999999999999999999999"], "--seed is 99999999999999999999999: it must be"),
        (["--workers", "1000000"], "--workers is 1000000: it must be 256 or less."),
        (["--size", "0"], "--size is 0: it must be 1 or more."),
        (["--threshold", "0"], "--threshold is 0.0: it must be 1e-06 or more."),
        (["--decay", "2"], "--decay is 2.0: it must be 1 or less."),
        (["--weight-decay", "inf"], "--weight-decay is inf"),
        (["--validate", "1"], "--validate is 1.0: it must be 0.9 or less."),
        (["--groups", "0"], "--groups is 0: it must be 1 or more."),
        (["--budget", "-1GB"], "the budget '-1GB' is not positive and finite"),
        (["--rule", "sltt", "--variant", "linear"], "the variant is for the rule stdl"),
        (["--in-shape", "1", "0", "8"], "--in-shape is 1 0 8: it must be 1 or more."),
        (["--name", "../x"], "--name is '../x': it must be a word"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("command", [train, plan], ids=["train", "plan"])
def test_numbers_that_cannot_be(no_work, command, options, says, tmp_path, capsys):
    assert command.main(["digits", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert list(tmp_path.iterdir()) == []


class TestImagesThatAreTooSmall:
    def test_train(self, train, tmp_path):
        code, _, complaints = train("--model", "vgg11", "--out", tmp_path / "run")
        assert code == 2
        (line,) = complaints.splitlines()
        assert "unit 7 of the network (32C3-AP(k2s2)) cannot take a map of 32 × 1 × 1" in line
        assert "use larger samples, or a network that shrinks them less." in line
        assert not (tmp_path / "run").exists()

    def test_plan(self, capsys):
        assert plan.main(["digits", "--in-shape", "1", "8", "8"]) == 2
        assert "cannot take a map of" in capsys.readouterr().err

    @pytest.mark.parametrize("model", ["resnet18", "resnet18_pooled", "vgg16", "sew_resnet34"])
    @pytest.mark.parametrize("side", [1, 2, 3])
    def test_every_model_says_so_or_works(self, capsys, model, side):
        arguments = [model, "--in-shape", "1", side, side, "--width", "0.01", "--batch-size", "2", "--steps", "1"]
        code = plan.main([*map(str, arguments), "--json"])
        printed = capsys.readouterr()
        if code == 0:
            assert json.loads(printed.out)["peak_bytes"] > 0
        else:
            assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize("stdout", ["utf-8", "ascii", None])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--epoch", "1"], "Unrecognized options: --epoch, 1, perhaps you meant --epochs"),
        (["--epochs", "----"], "Error parsing --epochs: invalid literal for int() with base 10: '----'"),
        (["--chunk", "x"], "Error parsing --chunk: 'x' is none of {None}|INT|{auto}"),
        (["--in-shape", "1"], "Missing value for argument '--in-shape'. Expected 3 values"),
    ],
)
def test_a_complaint_does_not_depend_on_standard_output(no_work, monkeypatch, capsys, stdout, options, says):
    stream = None if stdout is None else io.TextIOWrapper(io.BytesIO(), encoding=stdout)
    monkeypatch.setattr(sys, "stdout", stream)
    assert train.main(["digits", *options]) == 2
    assert capsys.readouterr().err == f"stdl_engine.train: {says} (--help lists the options).\n"


@pytest.mark.parametrize(
    ("command", "options", "says"),
    [
        (train, ["--stages", "0"], "--stages is 0: it must be 1 or more."),
        (train, ["--timeout", "nan"], "--timeout is nan: it must be a number from 1 to 1e06."),
        (plan, ["--stages", "0"], "--stages is 0: it must be 1 or more."),
        (plan, ["--stages", "2", "--ranks", "0"], "--ranks is 0: it must be 1 or more."),
        (plan, ["--scaling", "-1"], "--scaling is -1: it must be 1 or more."),
        (plan, ["--scaling", "4", "--rank-speed", "0"], "--rank-speed is 0.0: it must be 1 or more."),
        (plan, ["--scaling", "4", "--rank-speed", "nan"], "--rank-speed is nan: it must be a number from 1 to 1e30."),
        (plan, ["--scaling", "4", "--bandwidth", "inf"], "--bandwidth is inf: it must be 1e30 or less."),
        (plan, ["--curve", "/"], "--curve is '/', which names no file"),
        (plan, ["--curve", "nowhere/x.csv"], "--curve nowhere/x.csv cannot be written: nowhere is no folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_are_not_of_a_recipe(no_work, command, options, says, tmp_path, capsys):
    assert command.main(["digits", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "text"), [("deep.json", 100_000 * "["), ("deep.toml", "a = " + 20_000 * "[")])
def test_a_config_that_is_nested_too_deeply(no_work, name, text, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    assert train.main(["digits", "--config", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the config {name} is not {name[5:].upper()} (maximum recursion depth exceeded" in line


@pytest.mark.parametrize("option", ["model", "dataset"])
@pytest.mark.parametrize(
    ("text", "says"),
    [("import sys\nsys.exit(0)\n", "for ends:make raised SystemExit: 0 (ends.py, line 2)"),
     ("def make(**_):\n    raise SystemExit\n", "ends:make raised SystemExit (ends.py, line 2)")],
    ids=["imported", "called"],
)  # fmt: skip
def test_a_script_of_yours_that_ends_itself(option, text, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ends", raising=False)
    (tmp_path / "ends.py").write_text(text)
    assert train.main(["digits", f"--{option}", "ends:make"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "runs").exists()
