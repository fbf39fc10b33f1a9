"""The examples run as they stand and show what they say: those in docstrings, and the programs in examples/."""

import doctest
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from stdl_engine.kernels.alif import ops as alif_ops
from stdl_engine.kernels.lif import ops as lif_ops
from stdl_engine.kernels.plif import ops as plif_ops
from stdl_engine.neurons import alif, lif, plif

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("module", [lif, plif, alif, lif_ops, plif_ops, alif_ops], ids=lambda m: m.__name__)
def test_docstrings(module):
    outcome = doctest.testmod(
        module, extraglobs={"torch": torch}, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert outcome.attempted > 0
    assert outcome.failed == 0


def run(name: str, *arguments: str, monkeypatch, capsys) -> str:
    """What a program prints."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_no_example_is_forgotten():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == [
        "convert_spikingjelly.py", "own_block.py", "own_model_on_stages.py", "train_under_2gib.py",
    ]  # fmt: skip


def test_convert_spikingjelly(monkeypatch, capsys):
    printed = run("convert_spikingjelly.py", monkeypatch=monkeypatch, capsys=capsys)
    assert "20 of 20 neuron layers are fused now:" in printed
    assert float(re.search(r"of the outputs (\S+)", printed)[1]) < 1e-4
    assert float(re.search(r"first gradient (\S+)", printed)[1]) < 1e-4
    assert "64C7(s2)-MP(k3s2p1)-64SEWR" in printed


def test_own_block(monkeypatch, capsys):
    printed = run("own_block.py", "--epochs", "1", monkeypatch=monkeypatch, capsys=capsys)
    assert "64IB(s2)-10FC" in printed
    assert float(re.search(r"test (\S+)%", printed)[1]) > 30  # of ten classes


def test_train_under_2gib(monkeypatch, capsys):
    printed = run("train_under_2gib.py", "--steps", "2", "--batch", "448", monkeypatch=monkeypatch, capsys=capsys)
    peak, budget = re.search(r"peak (\S+) GiB of a budget of (\S+) GiB, batch 448", printed).groups()
    assert float(peak) <= float(budget) == 2
    assert float(re.search(r"plain BPTT would need (\S+) GB", printed)[1]) > 2 * 1.074
    assert float(re.search(r"test (\S+)%", printed)[1]) > 30


def test_own_model_on_stages_in_one_process(monkeypatch, capsys):
    printed = run("own_model_on_stages.py", monkeypatch=monkeypatch, capsys=capsys)
    assert "epoch 2/2  1 stages" in printed
    assert float(re.search(r"2/2 .* test (\S+)%", printed)[1]) > 30
