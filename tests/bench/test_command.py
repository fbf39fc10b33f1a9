"""`python -m bench`: what it writes and where, and what it says to wrong arguments."""

from __future__ import annotations

import json

import pytest

from bench import registry
from bench.__main__ import main
from bench.results import read, runs


class Stub:
    """Whether a command runs.

    Nothing is measured.
    """

    @staticmethod
    def run(session) -> None:
        session.record("a step", "x", [1.0, 2.0, 3.0], who="FusedLIF", against="sinabs LIF", shape="1×2^10")
        session.refuse("a step", "x", "not installed", who="absent")
        session.keep("profile.txt", "a profile")

    @staticmethod
    def plot(rows) -> bytes:
        return b"picture"


@pytest.fixture(autouse=True)
def _stub(monkeypatch, checkout):
    monkeypatch.setattr(registry, "load", lambda name: Stub)


@pytest.mark.parametrize("out", [True, False])
def test_rows_plots_and_the_page_go_to_an_own_folder(out, tmp_path, checkout, capsys):
    folder = tmp_path / "new" if out else checkout.mine
    assert main(["kernels", "--quick", *(["--out", str(folder)] if out else [])]) == 0
    rows = read(folder / "kernels.csv")
    found = [(row.who, row.spread and row.spread.p50, row.conditions["mode"]) for row in rows]
    assert found == [("FusedLIF", 2.0, "quick"), ("absent", None, "quick")]
    assert (folder / "kernels.png").read_bytes() == b"picture"
    assert (folder / "kernels_profile.txt").read_text() == "a profile"
    text = (folder / "benchmarks.md").read_text(encoding="utf-8")
    assert "![Whether a command runs](kernels.png)" in text
    assert "Nothing is measured." in text
    assert "not installed" in capsys.readouterr().out
    assert list(checkout.published.iterdir()) == []
    assert not checkout.page.exists()


def test_json_goes_alone_to_standard_output(tmp_path, capsys):
    assert main(["kernels", "--json", "--out", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["who"] for row in rows] == ["FusedLIF", "absent"]
    assert [row["value"] for row in rows] == ["2", ""]
    assert rows[0]["mode"] == "full"


def test_all_is_the_main_benchmarks_once(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr("bench.__main__.measure", lambda name, *_: ran.append(name) or [])
    monkeypatch.setattr("bench.__main__.write_page", lambda *_: 0)
    main(["static", "all", "--out", str(tmp_path)])
    assert ran == ["static", "kernels", "memory", "training", "engine_cost", "protocol"]
    ran.clear()
    main(["--out", str(tmp_path)])
    assert ran == list(registry.MAIN)


def test_report_measures_nothing(tmp_path, monkeypatch, capsys):
    main(["kernels", "--out", str(tmp_path)])
    (tmp_path / "benchmarks.md").unlink()
    monkeypatch.setattr("bench.__main__.measure", lambda *_: pytest.fail("measured"))
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "benchmarks.md").exists()


def test_a_report_of_nothing_is_an_error(tmp_path, capsys):
    folder = tmp_path / "empty"
    assert main(["report", "--out", str(folder)]) == 1
    assert "has no results to report: run python -m bench first." in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def fail(session) -> None:
    session.record("a step", "x", 1.0)
    raise ValueError("no such thing: do another.")


def test_a_failing_benchmark_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Stub, "run", staticmethod(fail))
    folder = tmp_path / "empty"
    assert main(["kernels", "--out", str(folder)]) == 1
    assert capsys.readouterr().err.endswith("python -m bench: no such thing: do another.\n")
    assert list(folder.iterdir()) == []


def test_a_failing_benchmark_stops_no_other(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "load", lambda name: Failing if name == "kernels" else Stub)
    assert main(["kernels", "static", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "python -m bench: no such thing: do another.\n"
    assert not (tmp_path / "kernels.csv").exists()
    assert len(runs(tmp_path / "static.csv")) == 1
    assert (tmp_path / "benchmarks.md").exists()


def test_a_benchmark_that_records_nothing_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Stub, "run", staticmethod(lambda session: None))
    assert main(["kernels", "--out", str(tmp_path)]) == 1
    assert "kernels measured nothing: its run(session) has to record something." in capsys.readouterr().err
    assert not (tmp_path / "kernels.csv").exists()


class Failing(Stub):
    run = staticmethod(fail)


def test_an_interrupt_is_a_sentence_and_keeps_what_was_finished(tmp_path, monkeypatch, capsys):
    def interrupt(session):
        raise KeyboardInterrupt

    class Interrupted(Stub):
        run = staticmethod(interrupt)

    monkeypatch.setattr(registry, "load", lambda name: Interrupted if name == "static" else Stub)
    assert main(["kernels", "static", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.endswith("stopped; python -m bench report shows what was finished.\n")
    assert (tmp_path / "kernels.csv").exists()
    assert not (tmp_path / "static.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "no benchmark 'speed': choose from all, kernels, static, memory, training"),
        (["kernels", "report"], "no benchmark 'report': choose from all, kernels"),
        (["report", "kernels"], "report shows all results of a folder: leave out kernels."),
        (["kernels", "--rounds", "1"], "--rounds is 1: medians need at least 2."),
        (["kernels", "--rounds", "many"], "invalid int value: 'many'"),
        (["kernels", "--force"], "--force is only for publish: leave it out."),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("action", ["kernels", "report", "publish"])
def test_the_published_folder_is_no_folder_for_a_run(action, checkout, capsys):
    with pytest.raises(SystemExit):
        main([action, "--out", str(checkout.published)])
    assert "which only publish writes: choose another folder." in capsys.readouterr().err
    assert list(checkout.published.iterdir()) == []


def test_a_folder_that_cannot_be(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        main(["kernels", "--out", str(tmp_path / "file" / "results")])
    assert "cannot write results to" in capsys.readouterr().err


def test_the_list_names_every_benchmark(capsys, checkout):
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in registry.BENCHMARKS)
    assert "Whether a command runs" in out
    assert not checkout.mine.exists()
