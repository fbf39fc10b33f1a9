"""Rows, the CSV file they are kept in, and the table for the terminal."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from bench.results import COLUMNS, Row, append, environment, read, table
from bench.timing import Spread
from stdl_engine.runs import commit


def row(**changes) -> Row:
    fields = {"benchmark": "kernels", "what": "a step", "unit": "x", "spread": Spread(1.0, 2.0, 3.0), "rounds": 5}
    return Row(**(fields | changes))


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
    where = environment("cpu", "quick") | {"others": "0.10"}
    append(path, [row(who="FusedLIF", against="Norse", shape="4×2^10", dtype="float32").as_dict(where)])
    (found,) = read(path)
    assert tuple(found) == COLUMNS
    assert (found["value"], found["p20"], found["p50"], found["p80"], found["rounds"]) == ("2", "1", "2", "3", "5")
    assert (found["who"], found["against"], found["shape"]) == ("FusedLIF", "Norse", "4×2^10")
    assert (found["mode"], found["device"], found["commit"], found["others"]) == ("quick", "cpu", commit(), "0.10")
    assert found["torch"]
    assert found["spikingjelly"]


def test_rows_are_added_after_those_there_are(tmp_path):
    path = tmp_path / "kernels.csv"
    where = environment("cpu", "full")
    append(path, [row(what="first, with a comma").as_dict(where)])
    append(path, [row(what="second").as_dict(where), row(what="third", spread=None, note="differs").as_dict(where)])
    found = read(path)
    assert [one["what"] for one in found] == ["first, with a comma", "second", "third"]
    assert (found[2]["value"], found[2]["note"]) == ("", "differs")


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "kernels.csv"
    append(path, [row().as_dict(environment("cpu", "full"))])
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        append(path, [row().as_dict(environment("cpu", "full"))])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_another_csv_file_is_not_taken_for_results(tmp_path):
    path = tmp_path / "kernels.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["name", "age"], ["a", "1"]])
    with pytest.raises(ValueError, match=r"kernels.csv is no file of results: it has no column 'benchmark'"):
        append(path, [row().as_dict(environment("cpu", "full"))])
    assert path.read_text().startswith("name,age")


def test_the_table_says_who_reached_what_and_why_not():
    console = Console(width=160, record=True, file=io.StringIO())
    rows = [row(who="FusedLIF", target=">= 4"), row(who="sinabs", spread=None, note="not installed")]
    console.print(table("title", rows))
    text = console.export_text()
    assert ">= 4 no" in text
    assert "not installed" in text
    assert "against" not in text  # a column nobody fills
