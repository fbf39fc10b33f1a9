"""`python -m bench gpu`: every part gets its line on the page, whatever becomes of it, and no GPU is one sentence."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from bench import gpu, gpu_page
from bench.__main__ import main, parse
from bench.gpu_page import MEASURED, TESTS, Part
from stdl_engine.kernels import inspect

from .. import conftest
from ..kernels.compare import Target
from .made_up import kernel_rows, write

CONSOLE = Console(quiet=True)


def python(code: str, name: str = "part", **options) -> Part:
    return Part(name, ["-c", code], **options)


def page_of(folder, *parts: Part, monkeypatch, dry: bool = False) -> tuple[int, str]:
    monkeypatch.setattr(gpu, "parts", lambda *_, **__: list(parts))
    code = gpu.run(folder, quick=False, dry=dry, console=CONSOLE)
    return code, (folder / gpu_page.PAGE).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("built_for", "remedy"),
    [("13.0", "see whether nvidia-smi or rocm-smi does"), (None, "is built without CUDA or ROCm: install one with")],
)
def test_no_gpu_is_one_sentence(built_for, remedy, checkout, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(SystemExit) as stop:
        main(["gpu"])
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("python -m bench: there is no GPU to measure, ")
    assert remedy in said
    assert said.endswith("by `make gpu DRY=1`.\n")
    assert said.count("\n") == 1
    assert not checkout.mine.exists()


@pytest.mark.parametrize("arguments", [["kernels"], ["--json"], ["--rounds", "3"]])
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["gpu", *arguments, "--dry-run"])
    assert stop.value.code == 2
    assert "gpu decides for itself what to run and prints no JSON" in capsys.readouterr().err


def test_figures_of_a_dry_run_are_kept_apart(checkout, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert parse(["kernels"]).out == checkout.mine
    assert parse(["gpu"]).out == checkout.mine / "gpu"
    for command in ("kernels", "gpu"):
        assert parse([command, "--dry-run"]).out == checkout.mine / "dry"


def test_parts(tmp_path):
    assert tuple(inspect.TARGETS) == gpu.TARGETS
    full, dry = gpu.parts(tmp_path), gpu.parts(tmp_path, dry=True)
    names = [part.name for part in full]
    assert names == ["doctor", "tests", *(f"compile for {one}" for one in gpu.TARGETS), *MEASURED]
    assert [part.command for part in full[:2]] == ["python -m stdl_engine.doctor", "python -m pytest -m gpu tests"]
    assert [part.command for part in full[-3:]] == [f"python -m bench {name}" for name in MEASURED]
    assert [part.command for part in dry[-3:]] == [f"python -m bench {name} --dry-run" for name in MEASURED]
    for part in (*full[-3:], *dry[-3:]):
        assert parse(part.arguments[2:]).out == tmp_path


def test_the_page_is_written_whatever_happens(tmp_path, monkeypatch, capfd):
    code, page = page_of(
        tmp_path,
        python("print('Triton target sm_90')", "doctor", is_kept=True),
        python("import sys; sys.exit('no kernel image: build another.')", "sentence"),
        python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crash"),
        python("import os; assert 'TRITON_INTERPRET' not in os.environ", "after"),
        monkeypatch=monkeypatch,
    )
    assert code == 1
    for line in (
        "| doctor | `python -c print('Triton target sm_90')` | done |",
        "| **failed with exit code 1** |",
        "| **failed with SIGSEGV** |",
        "## The machine\n\n```text\nTriton target sm_90\n```",
        "## sentence failed with exit code 1\n\n```text\nno kernel image: build another.\n```",
        "## crash failed with SIGSEGV\n\nIt wrote nothing about it.",
        "Please send it back",
    ):
        assert line in page
    assert page.count("| done |") == 2
    said = capfd.readouterr()
    assert "no kernel image" in said.err
    assert "sm_90" not in said.out


def test_all_done_is_no_error(tmp_path, monkeypatch):
    code, page = page_of(tmp_path, python("", "doctor"), monkeypatch=monkeypatch, dry=True)
    assert code == 0
    assert "no figure means anything" in page
    assert "## " not in page


def test_an_interrupt_leaves_a_page(tmp_path, monkeypatch):
    real = subprocess.Popen.wait

    def interrupted(process, timeout=None):
        if timeout == gpu.LIMIT and "long" in process.args[-1]:
            raise KeyboardInterrupt
        return real(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    monkeypatch.setattr(gpu, "PATIENCE", 0.3)
    parts = [python("", "doctor"), python("import time; time.sleep(60)  # long", "long"), python("", "last")]
    code, page = page_of(tmp_path, *parts, monkeypatch=monkeypatch)
    assert code == 130
    assert parts[1].seconds < 20
    assert "| **interrupted** |" in page
    assert "| not run | 0 |" in page


def test_a_part_that_hangs_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "LIMIT", 0.5)
    monkeypatch.setattr(gpu, "PATIENCE", 0.3)
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    parts = [python("import time; time.sleep(60)"), python(deaf + "import time; time.sleep(60)", "deaf")]
    code, page = page_of(tmp_path, *parts, monkeypatch=monkeypatch)
    assert all(part.seconds < 20 for part in parts)
    assert code == 1
    assert page.count("| **stopped after 0.5 seconds** |") == 2


def test_only_figures_of_this_run_are_shown(tmp_path, monkeypatch):
    write(tmp_path, "kernels", *kernel_rows(5.0), date="2030-01-01T00:00:00+00:00")
    _, page = page_of(tmp_path, python("import sys; sys.exit(1)", "kernels"), monkeypatch=monkeypatch)
    assert "FusedLIF" not in page
    failed = {"what": "forward", "who": "torch.compile", "unit": "M neurons/s", "note": "fails: RuntimeError: no"}
    write(tmp_path, "kernels", *kernel_rows(7.0), failed, date="2030-01-02T00:00:00+00:00")
    about = {"about": lambda part: gpu_page.count_rows(tmp_path, part)}
    _, page = page_of(tmp_path, python("", "kernels", **about), monkeypatch=monkeypatch)
    assert "| 4 figures, 1 failed |" in page
    assert "FusedLIF / sinabs LIF | 7 (6.3–7.7) |" in page
    assert "| torch.compile | forward | fails: RuntimeError: no |" in page
    assert "Not measured yet" not in page


def test_tests_that_failed_are_named(tmp_path, monkeypatch):
    code = f"""
open({str(tmp_path / TESTS)!r}, "w").write('''<testsuites><testsuite>
<testcase classname="tests.kernels.test_lif" name="test_step[cuda]"><failure message="assert 1 == 2&#10; +  where">
</failure></testcase><testcase classname="tests.kernels.test_lif" name="test_other"/>
<testcase classname="tests.rules" name="test_gpu"><skipped message="needs two GPUs"/></testcase>
</testsuite></testsuites>''')
raise SystemExit(1)"""
    (tmp_path / TESTS).write_text("of a run before")
    tests = python(code, "tests", about=lambda part: gpu_page.count_tests(tmp_path))
    _, page = page_of(tmp_path, python("", "doctor"), tests, monkeypatch=monkeypatch)
    assert "| 1 passed, 1 failed, 1 skipped |" in page
    assert "| `tests.kernels.test_lif::test_step[cuda]` | assert 1 == 2 |" in page
    assert "Skipped tests: 1 × needs two GPUs." in page


def test_compiled_kernels_are_counted():
    part = Part("compile", [], code=0)
    part.output = ['[{"registers": 32, "spills": 0},', '{"registers": 40, "spills": 8}]']
    assert gpu_page.count_kernels(part) == "2 kernels, at most 40 registers and 8 spilled bytes per thread"
    part.code = 1
    assert gpu_page.count_kernels(part) == ""


class Collected:
    """A test as pytest has collected it."""

    def __init__(self, *marks: pytest.Mark, **parameters: object) -> None:
        self.marks, self.added = marks, []
        if parameters:
            self.callspec = SimpleNamespace(params=parameters)

    def iter_markers(self, name: str):
        return (mark for mark in self.marks if mark.name == name)

    def add_marker(self, name: str) -> None:
        self.added.append(name)


def test_what_runs_on_a_gpu_is_selected():
    """The Triton kernels, on a GPU and in the interpreter, and what needs a GPU; not the kernels of the CPU."""
    needs_gpu = pytest.mark.skipif(True, reason="needs a GPU").mark
    chosen = [Collected(target=Target("triton", "cpu")), Collected(backend="triton"), Collected(needs_gpu, online=True)]
    needs_triton = pytest.mark.skipif(True, reason="needs Triton").mark
    others = [Collected(), Collected(target=Target("cpu", "cpu"), dtype=torch.float16), Collected(needs_triton, T=3)]
    conftest.pytest_collection_modifyitems([*chosen, *others])
    assert [item.added for item in (*chosen, *others)] == [["gpu"]] * 3 + [[]] * 3
