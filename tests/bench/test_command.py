"""`python -m bench`: what it writes, and what it says to wrong arguments."""

from __future__ import annotations

import json

import pytest

from bench import registry
from bench.__main__ import main
from bench.results import read


class Stub:
    """Shows that a command runs.

    Nothing is measured.
    """

    @staticmethod
    def run(session) -> None:
        session.record("a step", "x", [1.0, 2.0, 3.0], who="FusedLIF", against="sinabs LIF", shape="1×2^10")
        session.refuse("a step", "x", "not installed", who="absent")
        session.keep("kernels.png", b"picture")


@pytest.fixture(autouse=True)
def _stub(monkeypatch):
    monkeypatch.setattr("bench.__main__.load", lambda name: Stub)
    monkeypatch.setattr(registry, "load", lambda name: Stub)


def test_rows_plots_and_the_document_are_written(tmp_path, capsys):
    assert main(["kernels", "--quick", "--out", str(tmp_path / "new")]) == 0
    rows = read(tmp_path / "new" / "kernels.csv")
    assert [(row["who"], row["value"], row["mode"]) for row in rows] == [
        ("FusedLIF", "2", "quick"),
        ("absent", "", "quick"),
    ]
    assert (tmp_path / "new" / "kernels.png").read_bytes() == b"picture"
    text = (tmp_path / "new" / "benchmarks.md").read_text(encoding="utf-8")
    assert "![kernels](./kernels.png)" in text
    assert "not installed" in capsys.readouterr().out


def test_json_goes_alone_to_standard_output(tmp_path, capsys):
    assert main(["kernels", "--json", "--out", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["who"] for row in rows] == ["FusedLIF", "absent"]
    assert [row["value"] for row in rows] == ["2", ""]
    assert rows[0]["mode"] == "full"


def test_all_is_the_main_benchmarks_once(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr("bench.__main__.measure", lambda name, *_: ran.append(name) or [])
    monkeypatch.setattr("bench.report.document", lambda *_: "")
    main(["static", "all", "--out", str(tmp_path)])
    assert ran == ["static", "kernels", "memory", "training"]


def test_report_measures_nothing(tmp_path, monkeypatch, capsys):
    main(["kernels", "--out", str(tmp_path)])
    (tmp_path / "benchmarks.md").unlink()
    monkeypatch.setattr("bench.__main__.measure", lambda *_: pytest.fail("measured"))
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "benchmarks.md").exists()


def test_a_report_of_nothing_is_an_error(tmp_path, capsys):
    assert main(["report", "--out", str(tmp_path)]) == 1
    assert "has no results to report: run python -m bench first." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_failing_benchmark_writes_nothing(tmp_path, monkeypatch, capsys):
    def fail(session):
        session.record("a step", "x", 1.0)
        raise ValueError("no such thing: do another.")

    monkeypatch.setattr(Stub, "run", staticmethod(fail))
    assert main(["kernels", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("python -m bench: no such thing: do another.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "no benchmark 'speed': choose from all, report, kernels, static, memory, training"),
        (["kernels", "--rounds", "1"], "--rounds is 1: medians need at least 2."),
        (["kernels", "--rounds", "many"], "invalid int value: 'many'"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        main(["kernels", "--out", str(tmp_path / "file" / "results")])
    assert "cannot write results to" in capsys.readouterr().err


def test_the_list_names_every_benchmark(capsys):
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in registry.BENCHMARKS)
    assert "Shows that a command runs." in out
