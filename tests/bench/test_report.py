"""docs/benchmarks.md from made-up rows: conditions, wins and losses, and the right run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import plots, report
from bench.markdown import figure, number, pivot, table
from bench.results import PACKAGES, Row, append
from bench.timing import Spread


def place(**changes: str) -> dict[str, str]:
    where = {"mode": "full", "device": "cpu", "cpu": "Some CPU", "threads": "2", "others": "0.05", "commit": "abc123"}
    return where | dict.fromkeys(PACKAGES, "1.0") | {"date": "2030-01-01T00:00:00+00:00"} | changes


def write(folder: Path, name: str, *rows: dict, **where: str) -> None:
    made = []
    for fields in rows:
        value = fields.pop("value", None)
        spread = None if value is None else Spread(value * 0.9, value, value * 1.1)
        made.append(Row(**({"benchmark": name, "spread": spread, "rounds": 5, "dtype": "float32"} | fields)))
    append(folder / f"{name}.csv", [row.as_dict(place(**where)) for row in made])


def kernel_rows(faster: float = 6.0) -> list[dict]:
    step = {"what": "forward and backward, online, T=1", "shape": "1×2^22"}
    return [
        {**step, "who": "FusedLIF", "unit": "M neurons/s", "value": 100.0},
        {**step, "who": "FusedLIF", "unit": "of copy_", "value": 0.62},
        {**step, "who": "sinabs LIF", "unit": "M neurons/s", "value": 100 / faster},
        {**step, "who": "FusedLIF", "against": "sinabs LIF", "unit": "x", "value": faster, "target": ">= 4"},
    ]


def test_machine_versions_and_conditions_come_first(tmp_path):
    write(tmp_path, "kernels", *kernel_rows(), norse="")
    text = report.document(tmp_path, tmp_path)
    conditions, targets, behind, section = (
        text.index(heading) for heading in ("## Conditions", "## Targets", "## Where we are behind", "## kernels")
    )
    assert conditions < targets < behind < section
    assert "| kernels | abc123 | 2030-01-01 | full | 5 | cpu | Some CPU | 2 | 0.05 |" in text
    assert "norse not installed" in text
    assert "torch 1.0" in text
    assert "not quiet" not in text
    assert "Not measured yet: static, memory, training." in text


def test_a_win_and_its_share_of_the_bandwidth(tmp_path):
    write(tmp_path, "kernels", *kernel_rows(6.0))
    text = report.document(tmp_path, tmp_path)
    assert "6 (5.4–6.6) x | >= 4 | yes |" in text
    assert "0 of 1 comparisons." in text
    assert "| FusedLIF | 100 (0.62) |" in text
    assert "| sinabs LIF | 6 (5.4–6.6) |" in text


def test_a_loss_is_as_plain(tmp_path):
    write(tmp_path, "kernels", *kernel_rows(0.5))
    text = report.document(tmp_path, tmp_path)
    assert "| >= 4 | **no** |" in text
    assert "1 of 1 comparisons." in text
    assert "FusedLIF against sinabs LIF | float32 | 1×2^22: 0.5 (0.45–0.55) |" in text


def test_who_was_refused_is_named_with_the_reason(tmp_path):
    refused = {"what": "a step", "who": "Norse LIFBoxCell", "unit": "x", "note": "differs: gradients within 2.0e+00"}
    write(tmp_path, "kernels", *kernel_rows(), refused)
    assert "| Norse LIFBoxCell | a step | differs: gradients within 2.0e+00 |" in report.document(tmp_path, tmp_path)


def test_a_busy_machine_is_said(tmp_path):
    write(tmp_path, "kernels", *kernel_rows(), others="1.40")
    assert "The machine was not quiet during kernels" in report.document(tmp_path, tmp_path)


def test_the_last_full_run_counts_then_the_last_quick_one(tmp_path):
    path = tmp_path / "kernels.csv"
    write(tmp_path, "kernels", *kernel_rows(1.0), mode="quick", date="2030-01-01T00:00:00+00:00")
    write(tmp_path, "kernels", *kernel_rows(2.0), mode="quick", date="2030-01-02T00:00:00+00:00")
    assert {row["date"][:10] for row in report.last_run(path)} == {"2030-01-02"}
    write(tmp_path, "kernels", *kernel_rows(3.0), mode="full", date="2030-01-03T00:00:00+00:00")
    write(tmp_path, "kernels", *kernel_rows(4.0), mode="full", date="2030-01-04T00:00:00+00:00")
    write(tmp_path, "kernels", *kernel_rows(5.0), mode="quick", date="2030-01-05T00:00:00+00:00")
    assert [row["value"] for row in report.last_run(path)][-1] == "4"
    assert len(report.last_run(path)) == 4


def test_lean_against_paper_and_published_figures_are_no_contest(tmp_path):
    cost = {"what": "lean / paper", "who": "STDL", "against": "paper", "unit": "x", "value": 0.9, "target": "<= 1.1"}
    peak = {"what": "cifar10", "who": "STDL, plain", "against": "STDL, published", "unit": "x", "value": 0.99}
    faster = {"what": "resnet18, training step", "who": "STDL, lean", "against": "SpikingJelly BPTT", "unit": "x"}
    write(tmp_path, "training", cost, peak, faster | {"value": 0.8, "target": ">= 1", "shape": "width 1"})
    text = report.document(tmp_path, tmp_path)
    assert "1 of 1 comparisons." in text
    assert "STDL, lean against SpikingJelly BPTT | float32 | width 1: 0.8" in text
    assert "| <= 1.1 | yes |" in text


def test_memory_beside_the_published_figures(tmp_path):
    size = {"what": "cifar10, resnet18", "shape": "512×3×32×32, T=4", "unit": "GB", "rounds": 1}
    figures = {"published": 3.51, "plain": 3.512, "lean": 1.49}
    rows = [size | {"who": f"STDL, {form}", "value": gb} for form, gb in figures.items()]
    over = {"what": "resnet18 over time steps", "unit": "GB", "who": "STDL, lean", "rounds": 1}
    curve = [over | {"shape": f"512×3×32×32, T={T}", "value": gb} for T, gb in ((1, 1.46), (32, 1.61))]
    write(tmp_path, "memory", *rows, *curve)
    text = report.document(tmp_path, tmp_path)
    assert "| cifar10, resnet18, 512×3×32×32, T=4: STDL | 3.51 | 3.51 | 1.49 |" in text
    assert "|  | T=1 | T=32 |" in text
    assert "| STDL, lean | 1.46 | 1.61 |" in text


def test_pictures_are_linked_from_where_the_document_is(tmp_path):
    results, docs = tmp_path / "bench" / "results", tmp_path / "docs"
    results.mkdir(parents=True)
    docs.mkdir()
    write(results, "kernels", *kernel_rows())
    (results / "kernels.png").write_bytes(b"")
    assert "![kernels](../bench/results/kernels.png)" in report.document(results, docs)


def test_pictures_leave_out_who_was_refused():
    step = {"benchmark": "kernels", "unit": "M neurons/s", "dtype": "float32", "shape": "1×2^10"}
    what = "forward and backward, online, T=1"
    rows = [
        Row(**step, what=what, who="FusedLIF", spread=Spread(1, 2, 3)),
        Row(**step, what=what, who="absent", spread=None, note="not installed"),
    ]
    over = {"benchmark": "memory", "what": "over time", "unit": "GB", "who": "STDL"}
    curve = [Row(**over, shape=f"512, T={T}", spread=Spread(T, T, T)) for T in (1, 4)]
    for picture in (plots.kernels(rows), plots.bars(rows, "M/s"), plots.memory_over_time(curve), plots.kernels([])):
        assert picture.startswith(b"\x89PNG")


def test_no_results_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="has no results to report: run python -m bench first"):
        report.document(tmp_path, tmp_path)


def test_tables_and_numbers():
    assert table(("a|b", "c"), [("1", "2")]) == "| a\\|b | c |\n| --- | --- |\n| 1 | 2 |"
    rows = [{"k": "x", "c": "1", "v": "a"}, {"k": "y", "c": "2", "v": "b"}]
    found = pivot(rows, lambda r: r["k"], lambda r: r["c"], lambda r: r["v"], "corner")
    assert found.splitlines() == ["| corner | 1 | 2 |", "| --- | --- | --- |", "| x | a |  |", "| y |  | b |"]
    assert [number(text) for text in ("0", "1234.5", "12.345", "0.0123", "0.00123")] == [
        "0", "1234", "12.3", "0.0123", "1.2e-03",
    ]  # fmt: skip
    assert figure({"value": "2", "p20": "1", "p80": "3", "rounds": "1"}) == "2"
    assert figure({"value": "2", "p20": "1", "p80": "3", "rounds": "9"}) == "2 (1–3)"
    assert figure({"value": ""}) == "–"
