"""Models and data of the user's own, by the name of a function, from the command line."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

import stdl_engine
from stdl_engine import FusedLIF, checkpoints, evaluate, plan
from stdl_engine.own_functions import call_own, find_own
from stdl_engine.train import main

MODULE = """
import torch
from torch import nn
from stdl_engine.data import Dataset, MemorySource
from stdl_engine.data.prepare import Preparation
from stdl_engine.units import ConvUnit, Head

number = 3

def network(in_shape, num_classes, make_neuron, width):
    channels = max(2, round(16 * width))
    return nn.Sequential(
        ConvUnit(in_shape[0], channels, make_neuron), ConvUnit(channels, channels, make_neuron, conv_stride=2),
        ConvUnit(channels, channels, make_neuron), Head(channels, num_classes),
    )

def stripes(root, steps, **_):
    generator = torch.Generator().manual_seed(0)
    def source(count):
        y = torch.arange(count) % 2
        x = torch.rand(count, 1, 6, 6, generator=generator)
        x[y == 0, :, ::2] += 1
        x[y == 1, :, :, ::2] += 1
        return MemorySource(samples=x, labels=y, prepare=Preparation())
    return Dataset(name="stripes", num_classes=2, in_shape=(1, 6, 6), train=source(48), test=source(16))

def spoilt(**options):
    data = stripes(**options)
    data.train.samples[7, 0, 3, 3] = float("nan")
    return data

def few(layers): return None
def no_model(**_): return nn.Linear(3, 3)
def other_classes(in_shape, make_neuron, **_): return nn.Sequential(ConvUnit(in_shape[0], 4, make_neuron), Head(4, 7))
def no_data(**_): return [1, 2, 3]
def fails(**_): raise KeyError("weights.pt")
class Nets:
    @staticmethod
    def small(**options): return network(**options)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a module of the user's, in which the commands are typed."""
    (tmp_path / "strangers.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import torch\nprint(\n")
    (tmp_path / "needs.py").write_text("import a_library_that_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    yield tmp_path
    for name in ("strangers", "broken", "needs"):
        sys.modules.pop(name, None)


OWN = ["--model", "strangers:network", "--dataset", "strangers:stripes"]
QUICK = ["--width", "0.25", "--budget", "1", "--steps", "2", "--batch-size", "8", "--device", "cpu", "--lr", "0.1"]


def test_train_resume_evaluate_load_plan(here, capsys):
    assert main(["digits", *OWN, *QUICK, "--epochs", "3", "--out", "run"]) == 0
    assert main(["--resume", "run"]) == 0
    capsys.readouterr()
    assert evaluate.main(["run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert found["test_accuracy"] == summary["test_accuracy"] > 0.8
    assert stdl_engine.load("run")(torch.rand(2, 1, 6, 6)).shape == (2, 2)
    assert plan.main(["digits", *OWN, *QUICK, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_bytes"] == summary["peak_bytes"]


def test_a_function_inside_a_class(here):
    assert len(call_own("strangers:Nets.small", in_shape=(1, 6, 6), num_classes=2, make_neuron=FusedLIF, width=1)) == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model", "nowhere:network"], "there is no module nowhere for nowhere:network: modules are looked for in "),
        (["--model", "strangers.deeper:network"], "there is no module strangers.deeper for "),
        (["--model", "strangers:resnet"], "strangers has no function 'resnet' for strangers:resnet: it has "),
        (["--model", "strangers:number"], "strangers:number is a int, which cannot be called"),
        (["--model", "strangers:"], "'strangers:' names no function: write \"package.module:function\""),
        (["--model", ":network"], "':network' names no function"),
        (["--model", "./strangers.py:network"], "'./strangers.py:network' names no function"),
        (["--model", "broken:network"], "importing broken for broken:network raised SyntaxError"),
        (["--model", "needs:network"], "importing needs for needs:network raised ModuleNotFoundError: No module named "
                                       "'a_library_that_nobody_has' (needs.py, line 1)"),
        (["--model", "strangers:few"], "strangers:few needs 'layers', and is offered make_neuron, in_shape, "),
        (["--model", "strangers:no_model"], "no_model returned what cannot be trained: the model is a Linear"),
        (["--model", "strangers:other_classes"], "returned a network for 7 classes, and there are 2"),
        (["--model", "strangers:fails"], "strangers:fails raised KeyError: 'weights.pt' (strangers.py, line "),
        (["--dataset", "strangers:no_data"], "no_data returned a list: return a stdl_engine.data.Dataset, or a pair "),
        (["--dataset", "strangers:fails"], "strangers:fails raised KeyError: 'weights.pt'"),
        (["--dataset", "nowhere:data"], "there is no module nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_one_sentence(here, capsys, options, says):
    assert main(["digits", *OWN, *QUICK, *options, "--epochs", "1", "--out", "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (here / "run").exists()


def test_one_value_that_is_no_number(here, capsys):
    """Spikes would hide it from every loss; the run stops before a weight has it."""
    settings = ["digits", *OWN, *QUICK, "--dataset", "strangers:spoilt", "--epochs", "1"]
    assert main([*settings, "--out", "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the input has values that are not finite numbers (NaN or infinite): replace them." in line
    _, state, _ = checkpoints.load_last(here / "run")
    assert all(value.isfinite().all() for value in state["rule"]["model"].values())


def test_a_module_that_has_gone(here, capsys):
    """Resume and evaluate in another folder say where they looked."""
    assert main(["digits", *OWN, *QUICK, "--epochs", "1", "--out", "run"]) == 0
    (here / "strangers.py").unlink()
    sys.modules.pop("strangers")
    for command, arguments in ((main, ["--resume", "run"]), (evaluate.main, ["run"])):
        capsys.readouterr()
        assert command(arguments) == 2
        assert f"there is no module strangers for strangers:network: modules are looked for in {here}" in (
            capsys.readouterr().err
        )


def test_the_example_of_the_docs(here, capsys):
    """As it stands there, by the command that stands there."""
    page = (Path(stdl_engine.__file__).parent.parent / "docs" / "training.md").read_text()
    (code,) = re.findall(r"```python\n(# mine\.py\n.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"python -m stdl_engine\.train (.*mine:network.*)", page)
    (here / "mine.py").write_text(code)
    assert main([*command.split(), "--out", "run"]) == 0
    assert json.loads((here / "run" / "summary.json").read_text())["test_accuracy"] > 0.9


def test_options_reach_the_function(here):
    """All that a model and a dataset are called with."""
    (here / "strangers.py").write_text("def seen(**options): raise ValueError(sorted(options))")
    for kind, names in (
        ("model", ["in_shape", "make_neuron", "num_classes", "width"]),
        ("dataset", ["augment", "on_bad_sample", "root", "steps"]),
    ):
        from dataclasses import replace

        from stdl_engine.building import build_network, load_data
        from stdl_engine.recipes import RECIPES

        recipe = replace(RECIPES["digits"], **{kind: "strangers:seen"})
        with pytest.raises(ValueError, match=str(names).replace("[", r"\[")):
            build_network(recipe) if kind == "model" else load_data(recipe)


def test_the_current_folder_comes_first_for_installed_commands(here):
    assert find_own("strangers:network").__module__ == "strangers"
    assert sys.path[0] == str(here)
