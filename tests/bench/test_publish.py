"""Publishing: which run, over which, and that git sees nothing of all the other commands."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.results import runs

from .made_up import kernel_rows, write

ROOT = Path(__file__).parents[2]


def published(checkout) -> list[str]:
    """The days of the published runs."""
    return [run.conditions["date"] for run in runs(checkout.published / "kernels.csv")]


def test_rows_plots_files_and_the_page_are_published(checkout, capsys):
    write(checkout.published, "kernels", *kernel_rows(2.0), date="2029-01-01")
    before = (checkout.published / "kernels.csv").read_bytes()
    write(checkout.mine, "kernels", *kernel_rows(3.0), date="2030-01-01")
    (checkout.mine / "kernels_profile.txt").write_text("a profile")
    assert main(["publish"]) == 0
    out = capsys.readouterr().out
    assert "published: kernels, the full run of 2030-01-01 at commit abc123, Some CPU, 2 threads" in out
    assert published(checkout) == ["2029-01-01", "2030-01-01"]
    assert (checkout.published / "kernels.csv").read_bytes().startswith(before)
    assert (checkout.published / "kernels.png").read_bytes().startswith(b"\x89PNG")
    assert (checkout.published / "kernels_profile.txt").read_text() == "a profile"
    text = checkout.page.read_text(encoding="utf-8")
    assert "| FusedLIF / sinabs LIF | 3 (2.7–3.3) |" in text
    assert "*published*" not in text


def test_publishing_again_adds_nothing(checkout, capsys):
    write(checkout.mine, "kernels", *kernel_rows())
    assert main(["publish"]) == 0
    files = {path: path.read_bytes() for path in [*checkout.published.iterdir(), checkout.page]}
    assert main(["publish"]) == 0
    assert "that is not published already" in capsys.readouterr().out
    assert files == {path: path.read_bytes() for path in [*checkout.published.iterdir(), checkout.page]}


def test_without_own_results_only_the_page_is_written_again(checkout):
    write(checkout.published, "kernels", *kernel_rows())
    assert main(["publish"]) == 0
    assert published(checkout) == ["2030-01-01T00:00:00+00:00"]
    assert checkout.page.exists()


def test_the_last_full_run_is_published_before_a_later_quick_one(checkout):
    write(checkout.mine, "kernels", *kernel_rows(), mode="full", date="2030-01-01")
    write(checkout.mine, "kernels", *kernel_rows(), mode="full", date="2030-01-02")
    write(checkout.mine, "kernels", *kernel_rows(), mode="quick", date="2030-01-03")
    assert main(["publish"]) == 0
    assert published(checkout) == ["2030-01-02"]


def test_quick_rows_are_not_put_over_full_ones_unless_asked(checkout, capsys):
    write(checkout.published, "kernels", *kernel_rows(2.0), mode="full", date="2029-01-01")
    write(checkout.mine, "kernels", *kernel_rows(3.0), mode="quick", date="2030-01-01")
    write(checkout.mine, "call_overhead", {"what": "a call", "unit": "µs", "value": 5.0})
    assert main(["publish"]) == 1
    assert capsys.readouterr().err == (
        "python -m bench: your run of kernels is quick and the published one is full: measure it in full "
        "(python -m bench kernels), or publish it all the same with --force.\n"
    )
    assert published(checkout) == ["2029-01-01"]
    assert not (checkout.published / "call_overhead.csv").exists(), "all or nothing"
    assert not checkout.page.exists()
    assert main(["publish", "call_overhead"]) == 0
    assert published(checkout) == ["2029-01-01"]
    assert main(["publish", "--force"]) == 0
    assert published(checkout) == ["2029-01-01", "2030-01-01"]
    assert "| FusedLIF / sinabs LIF | 3 (2.7–3.3) |" in checkout.page.read_text(encoding="utf-8")


def test_quick_rows_over_quick_ones_and_over_none(checkout):
    for date in ("2030-01-01", "2030-01-02"):
        write(checkout.mine, "kernels", *kernel_rows(), mode="quick", date=date)
        assert main(["publish"]) == 0
    assert published(checkout) == ["2030-01-01", "2030-01-02"]


def test_a_dry_run_is_never_published(checkout, capsys):
    write(checkout.mine, "kernels", *kernel_rows(3.0), mode="dry")
    assert main(["publish"]) == 0
    assert published(checkout) == []
    assert main(["publish", "kernels"]) == 1
    assert "has no run of kernels to publish" in capsys.readouterr().err


def test_a_name_without_a_run_is_an_error(checkout, capsys):
    assert main(["publish", "kernels"]) == 1
    assert "has no run of kernels to publish: run python -m bench kernels first." in capsys.readouterr().err


def test_a_page_that_cannot_be_made_publishes_no_rows(checkout, monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("no picture")

    write(checkout.mine, "kernels", *kernel_rows())
    monkeypatch.setattr("bench.report.document", fail)
    assert main(["publish"]) == 1
    assert list(checkout.published.iterdir()) == []


TINY = '''"""Seconds of nothing.

A benchmark is one file and one line of the registry.
"""


def run(session):
    session.record("nothing", "s", 1.0, who="us")
'''
COMMANDS = """
import subprocess
from bench.__main__ import main

more = ["tiny", "--out", "bench/mine/more"]
for arguments in (["--list"], ["tiny", "--quick"], ["tiny", "--json"], ["report"], more):
    assert main(arguments) == 0, arguments
    status = subprocess.run(["git", "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    assert status == "", (arguments, status)
assert main(["publish"]) == 0
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_sees_nothing_but_what_was_published(tmp_path):
    for name in ("bench", "docs", "kernels", "stdl_engine"):
        junk = shutil.ignore_patterns("__pycache__", "mine")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=junk)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / "bench" / "tiny.py").write_text(TINY)
    registry = tmp_path / "bench" / "registry.py"
    registry.write_text(registry.read_text().replace('    "spike_conv",\n', '    "spike_conv",\n    "tiny",\n'))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook, for example
    run = functools.partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True)
    git = functools.partial(run, env=clean, check=True)
    git(["git", "init", "-q"])
    git(["git", "add", "."])
    git(["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "commit", "-q", "-m", "all"])
    result = run([sys.executable, "-W", "ignore", "-c", COMMANDS], env={**clean, "PYTHONPATH": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    changed = {line[3:] for line in git(["git", "status", "--porcelain"]).stdout.splitlines()}
    drawn_again = {name for name in changed if name.endswith(".png")}  # by another version of matplotlib
    assert changed - drawn_again == {"bench/results/tiny.csv", "docs/benchmarks.md"}
    assert "Seconds of nothing" in (tmp_path / "bench" / "mine" / "benchmarks.md").read_text(encoding="utf-8")
    text = (tmp_path / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert "## Seconds of nothing\n" in text
    assert "A benchmark is one file and one line of the registry.\n\n| what | who | found |" in text
