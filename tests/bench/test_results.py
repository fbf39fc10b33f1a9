"""Rows, the CSV file they are kept in, and the table for the terminal."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from bench.machine import conditions
from bench.results import COLUMNS, Row, Run, append, read, runs
from bench.terminal import table
from bench.timing import Spread
from stdl_engine.runs import commit


def row(**changes) -> Row:
    fields = {"benchmark": "kernels", "what": "a step", "unit": "x", "spread": Spread(1.0, 2.0, 3.0), "rounds": 5}
    return Row(**(fields | {"conditions": conditions("cpu", "full")} | changes))


@pytest.mark.parametrize(
    ("target", "median", "reached"),
    [(">= 2", 2.0, True), (">= 2", 1.99, False), ("<= 2", 2.0, True), ("<= 2", 2.01, False)],
)
def test_targets_from_above_and_below(target, median, reached):
    assert row(target=target, spread=Spread(0, median, 9)).reached is reached


def test_no_figure_reaches_no_target():
    assert not row(target="<= 2", spread=None, note="not installed").reached


def test_a_row_carries_its_place_and_time(tmp_path):
    path = tmp_path / "kernels.csv"
    where = conditions("cpu", "quick") | {"others": "0.10"}
    kept = row(who="FusedLIF", against="Norse", shape="4×2^10", dtype="float32", target=">= 4", conditions=where)
    append(path, [kept])
    assert read(path) == [kept]
    with path.open(newline="", encoding="utf-8") as file:
        (found,) = csv.DictReader(file)
    assert tuple(found) == COLUMNS
    assert (found["value"], found["p20"], found["p50"], found["p80"], found["rounds"]) == ("2", "1", "2", "3", "5")
    assert (found["who"], found["against"], found["shape"]) == ("FusedLIF", "Norse", "4×2^10")
    assert (found["mode"], found["device"], found["commit"], found["others"]) == ("quick", "cpu", commit(), "0.10")
    assert found["torch"]
    assert found["spikingjelly"]


def test_rows_are_added_after_those_there_are(tmp_path):
    path = tmp_path / "kernels.csv"
    append(path, [row(what="first, with a comma")])
    before = path.read_text(encoding="utf-8")
    append(path, [row(what="second"), row(what="third", spread=None, note="differs")])
    assert path.read_text(encoding="utf-8").startswith(before)
    found = read(path)
    assert [one.what for one in found] == ["first, with a comma", "second", "third"]
    assert (found[2].spread, found[2].note) == (None, "differs")


def test_runs_are_told_apart_by_their_time(tmp_path):
    path = tmp_path / "kernels.csv"
    assert runs(path) == []
    for date, mode in (("2030-01-01", "full"), ("2030-01-02", "quick")):
        where = conditions("cpu", mode) | {"date": date}
        append(path, [row(conditions=where), row(spread=None, note="differs", conditions=where)])
    first, last = runs(path)
    assert [run.conditions["date"] for run in (first, last)] == ["2030-01-01", "2030-01-02"]
    assert (first.quick, last.quick) == (False, True)
    assert [len(run.rows) for run in (first, last)] == [2, 2]
    assert [one.spread for one in first.measured] == [Spread(1.0, 2.0, 3.0)]


@pytest.mark.parametrize(
    ("device", "threads", "machine"),
    [("cpu", "1", "Some CPU, 1 thread"), ("Some GPU", "8", "Some GPU with Some CPU, 8 threads")],
)
def test_a_machine_has_a_name(device, threads, machine):
    assert Run([row(conditions={"device": device, "cpu": "Some CPU", "threads": threads})]).machine == machine


def test_an_older_file_lacks_a_column(tmp_path):
    path = tmp_path / "kernels.csv"
    append(path, [row()])
    text = path.read_text(encoding="utf-8").replace(",sinabs,", ",a_library_of_old,")
    path.write_text(text, encoding="utf-8")
    (found,) = read(path)
    assert found.conditions["sinabs"] == ""
    assert found.spread == Spread(1.0, 2.0, 3.0)


def test_a_broken_row_is_named(tmp_path):
    path = tmp_path / "kernels.csv"
    append(path, [row(), row()])
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:2], lines[2][:20]]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"kernels.csv is broken at row 3 .*: delete that row, or the file."):
        read(path)


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "kernels.csv"
    append(path, [row()])
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        append(path, [row()])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_another_csv_file_is_not_taken_for_results(tmp_path):
    path = tmp_path / "kernels.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["name", "age"], ["a", "1"]])
    with pytest.raises(ValueError, match=r"kernels.csv is no file of results: it has no column 'benchmark'"):
        append(path, [row()])
    assert path.read_text().startswith("name,age")


def test_the_table_says_who_reached_what_and_why_not():
    console = Console(width=160, record=True, file=io.StringIO())
    rows = [row(who="FusedLIF", target=">= 4"), row(who="sinabs", spread=None, note="not installed")]
    console.print(table("title", rows))
    text = console.export_text()
    assert ">= 4 no" in text
    assert "not installed" in text
    assert "against" not in text  # a column nobody fills
