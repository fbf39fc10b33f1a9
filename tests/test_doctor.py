"""The report for bug reports: what is there, and whether the kernels compute what they should."""

import re
import subprocess
import sys

import pytest
import torch

from stdl_engine import doctor
from stdl_engine.kernels import cpu_threads
from stdl_engine.kernels.lif import cpu


def test_report(capsys):
    assert doctor.main() == 0
    printed = capsys.readouterr().out
    for word in (
        "torch",
        "numba",
        "vector features",
        "threads",
        "compiled kernels",
        "GPU",
        "spikingjelly",
        "lif step, cpu",
        "norm and lif, cpu",
        "spike_conv",
    ):
        assert word in printed
    assert "all kernels agree." in printed
    assert "FAILED" not in printed


@pytest.mark.parametrize("pool", ["torch's OpenMP", "Python (torch's OpenMP library was not found)"])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_are_those_that_ran(threads, pool, monkeypatch):
    before = torch.get_num_threads()
    if pool.startswith("Python"):
        monkeypatch.setattr(cpu_threads, "_torch_openmp", lambda: None)
    try:
        torch.set_num_threads(threads)
        assert dict(doctor.cpu())["threads"] == f"{threads} of {threads} ran a kernel ({pool})"
    finally:
        torch.set_num_threads(before)


def test_says_where_triton_kernels_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for interprets, answer in (
        (True, "the interpreter of Triton"),
        (False, "none; python -m stdl_engine.kernels.inspect"),
    ):
        monkeypatch.setattr(doctor.dispatch, "interpreting", lambda interprets=interprets: interprets)
        assert dict(doctor.gpu())["Triton target"].startswith(answer)


def test_the_driver_of_a_gpu(monkeypatch, tmp_path):
    def answer(*_, **__):
        return subprocess.CompletedProcess([], 0, "580.95.05\n580.95.05\n", "")

    def absent(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(doctor.subprocess, "run", answer)
    assert doctor.gpu_driver() == "580.95.05"
    monkeypatch.setattr(doctor.subprocess, "run", absent)
    monkeypatch.setattr(doctor, "AMD_DRIVER", tmp_path / "version")
    assert doctor.gpu_driver() == "unknown: there is no nvidia-smi"
    (tmp_path / "version").write_text("6.14.14\n")
    assert doctor.gpu_driver() == "6.14.14"


def test_a_kernel_that_is_wrong_is_named(capsys, monkeypatch):
    real = cpu.forward

    def wrong(operands, options):
        real(operands, options)
        operands.m.view(-1)[7] += 0.01

    monkeypatch.setattr(cpu, "forward", wrong)
    assert doctor.main() == 1
    printed = capsys.readouterr().out
    difference = float(re.search(r"  lif step, cpu +FAILED (\S+)", printed)[1])
    assert 0.001 < difference <= 0.01  # relative, as the membrane may be above 1
    assert "checks failed: please report this whole page." in printed


def test_a_kernel_that_crashes_does_not_end_the_report(capsys, monkeypatch):
    def broken():
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(doctor, "spike_conv_difference", broken)
    assert doctor.main() == 1
    assert "spike_conv, cpu        FAILED RuntimeError: no such instruction" in capsys.readouterr().out


def test_missing_extras_are_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda package: "" if package in ("norse", "sinabs") else "1.0")
    lines = dict(doctor.extras())
    assert lines["train"].startswith("torchvision 1.0, spikingjelly 1.0, scikit-learn 1.0")
    assert "missing norse, sinabs: pip install 'stdl-engine[bench]'" in lines["bench"]


def test_needs_only_the_core():
    program = (
        "import sys\n"
        "for name in ('rich', 'tyro', 'spikingjelly', 'sklearn', 'torchvision', 'tensorboard', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "import stdl_engine.doctor, stdl_engine.rules, stdl_engine.planning.planner, stdl_engine.planning.fit\n"
        "import stdl_engine.convert, stdl_engine.models, stdl_engine.recipes\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("difference", [0.0, 1e-6])
def test_difference_is_relative_above_one(difference):
    some = [torch.tensor([0.5, 1000.0 * (1 + difference)])]
    assert doctor.largest_difference(some, [torch.tensor([0.5, 1000.0])]) < 2e-6
