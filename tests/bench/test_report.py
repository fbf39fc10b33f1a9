"""Pages from made-up rows: conditions, wins and losses, the right run, and published figures beside one's own."""

from __future__ import annotations

import re

import pytest

from bench import places, registry, report
from bench.markdown import figure, number, pivot, table
from bench.results import Row, runs
from bench.timing import Spread

from .made_up import kernel_rows, write


@pytest.fixture
def mine(checkout):
    """The folder of a reader's results."""
    return checkout.mine


def page(folder) -> str:
    """The text of a reader's page."""
    return report.files_of(report.readers_page(folder))[folder / places.PAGE]


def test_machine_versions_and_conditions_come_first(mine):
    write(mine, "kernels", *kernel_rows(), norse="")
    text = page(mine)
    headings = ("## Conditions", "## Targets", "## Comparisons", f"## {registry.title('kernels')}")
    assert [text.index(heading) for heading in headings] == sorted(text.index(heading) for heading in headings)
    assert "| kernels | abc123 | 2030-01-01 | full | 5 | cpu | Some CPU | 2 | 0.05 |" in text
    assert "norse not installed" in text
    assert "torch 1.0" in text
    assert "not quiet" not in text
    assert "Not measured yet: static, memory, training, engine_cost, protocol." in text


def test_a_win_and_its_share_of_the_bandwidth(mine):
    write(mine, "kernels", *kernel_rows(6.0))
    text = page(mine)
    assert "| kernels | >= 4 x | 1 of 1 |" in text
    assert "Not reached" not in text
    assert "Ahead in 1 of 1 comparisons, behind in 0." in text
    assert "| FusedLIF | 100 |" in text
    assert "| FusedLIF, share of `copy_` | 0.62 |" in text
    assert "| FusedLIF / sinabs LIF | 6 (5.4–6.6) |" in text


def test_a_loss_is_as_plain(mine):
    write(mine, "kernels", *kernel_rows(0.5))
    text = page(mine)
    assert "| kernels | >= 4 x | **0 of 1** |" in text
    what = "forward and backward, online, T=1: FusedLIF against sinabs LIF"
    assert f"| kernels | {what} | 1×2^22: 0.5 (0.45–0.55) | >= 4 x |" in text
    assert "Ahead in 0 of 1 comparisons, behind in 1:" in text
    assert f"| {what} | float32 | 1×2^22: 0.5 (0.45–0.55) |" in text


def test_an_even_comparison_is_neither(mine):
    write(mine, "kernels", *kernel_rows(1.0))
    assert "Ahead in 0 of 1 comparisons, even in 1, behind in 0." in page(mine)


def test_who_was_refused_is_named_once_with_the_reason(mine):
    refused = {"who": "Norse LIFBoxCell", "unit": "x", "note": "norse is not installed"}
    write(mine, "kernels", *kernel_rows(), refused | {"what": "a step"}, refused | {"what": "two steps"})
    assert "| Norse LIFBoxCell | a step; two steps | norse is not installed |" in page(mine)


def test_a_page_of_refusals_alone(mine):
    """Such as that of a machine without Triton."""
    write(mine, "static", {"what": "bytes a neuron", "who": "Triton", "unit": "bytes", "note": "not installed"})
    text = page(mine)
    assert "| Triton | bytes a neuron | not installed |" in text
    assert "## Targets" not in text
    assert "Kernels launched" not in text
    assert not re.search(r"^\|\s*\|$", text, flags=re.M), "a table without columns"


def test_a_busy_machine_is_said_of_what_is_timed(mine):
    write(mine, "kernels", *kernel_rows(), others="1.40")
    counted = {"what": "launches a step, forward, online, T=1", "who": "FusedLIF", "unit": "launches", "value": 1.0}
    write(mine, "static", counted | {"rounds": 1}, others="1.40")
    assert "The machine was not quiet during kernels: do not rely on absolute figures there." in page(mine)


def test_a_reader_sees_the_last_run_be_it_quick_or_full(mine):
    write(mine, "kernels", *kernel_rows(3.0), mode="full", date="2030-01-03T00:00:00+00:00")
    write(mine, "kernels", *kernel_rows(5.0), mode="quick", date="2030-01-05T00:00:00+00:00")
    shown = report.readers_page(mine).shown["kernels"]
    assert [row.spread.p50 for row in shown.rows][-1] == 5.0
    assert len(shown.rows) == 4


def test_the_readers_figures_come_first_and_the_published_ones_beside_them(checkout):
    ours = {"cpu": "Our CPU", "threads": "64", "commit": "fedcba", "date": "2029-01-01T00:00:00+00:00", "torch": "0.9"}
    write(checkout.published, "kernels", *kernel_rows(2.0), **ours)
    write(checkout.mine, "kernels", *kernel_rows(0.5), device="Some GPU", threads="1", mode="quick")
    text = page(checkout.mine)
    assert text.startswith("# Benchmarks on your machine\n")
    assert "Some GPU with Some CPU, 1 thread. Published: Our CPU, 64 threads." in text
    assert "| FusedLIF / sinabs LIF | 0.5 (0.45–0.55) |\n| *published* | 2 (1.8–2.2) |" in text
    assert "| kernels, *published* | fedcba | 2029-01-01 | full | 5 | cpu | Our CPU | 64 | 0.05 |" in text
    assert "Versions of the published runs: python 1.0, stdl-engine 1.0, torch 0.9," in text
    assert "Ahead in 0 of 1 comparisons, behind in 1:" in text
    assert "Published, where the same was measured: ahead in 1 of 1 comparisons, behind in 0." in text
    behind = "| forward and backward, online, T=1: FusedLIF against sinabs LIF | float32 | 1×2^22: 0.5 (0.45–0.55) |"
    assert f"{behind} 1×2^22: 2 (1.8–2.2) |" in text
    assert "| kernels | >= 4 x | **0 of 1** |" in text


def test_only_rows_of_the_same_thing_stand_beside_each_other(checkout):
    call, later = {"what": "a call", "who": "us", "unit": "µs"}, "2030-01-02T00:00:00+00:00"
    write(checkout.published, "call_overhead", call | {"shape": "1", "value": 3.0})
    write(checkout.mine, "call_overhead", *(call | {"shape": size, "value": 5.0} for size in "12"), date=later)
    text = page(checkout.mine)
    assert "| what | who | size | dtype | found | published |" in text
    assert "| a call | us | 1 | float32 | 5 (4.5–5.5) µs | 3 (2.7–3.3) µs |" in text
    assert "| a call | us | 2 | float32 | 5 (4.5–5.5) µs |  |" in text


def test_beside_a_quick_run_stands_a_quick_one_or_else_the_last(checkout):
    write(checkout.published, "kernels", *kernel_rows(2.0), mode="quick", date="2029-01-01T00:00:00+00:00")
    write(checkout.published, "kernels", *kernel_rows(3.0), mode="full", date="2029-01-02T00:00:00+00:00")
    published = runs(checkout.published / "kernels.csv")
    write(checkout.mine, "kernels", *kernel_rows(), mode="quick")
    (run,) = runs(checkout.mine / "kernels.csv")
    assert report.beside_of(run, published) == published[0]
    assert report.beside_of(run, published[1:]) == published[1]
    assert report.beside_of(published[1], published) == published[0]  # never beside itself
    assert report.beside_of(run, []) is None


def test_lean_against_paper_and_published_figures_are_no_contest(mine):
    cost = {"what": "lean / paper", "who": "STDL", "against": "paper", "unit": "x", "value": 0.9, "target": "<= 1.1"}
    peak = {"what": "cifar10", "who": "STDL, plain", "against": "STDL, published", "unit": "x", "value": 0.99}
    faster = {"what": "resnet18, training step", "who": "STDL, lean", "against": "SpikingJelly BPTT", "unit": "x"}
    write(mine, "training", peak, faster | {"value": 0.8, "target": ">= 1", "shape": "width 1"})
    write(mine, "engine_cost", cost)
    text = page(mine)
    assert "Ahead in 0 of 1 comparisons, behind in 1:" in text
    assert "STDL, lean against SpikingJelly BPTT | float32 | width 1: 0.8" in text
    assert "| engine_cost | <= 1.1 x | 1 of 1 |" in text


def test_memory_beside_the_papers_figures(mine):
    size = {"what": "cifar10, resnet18", "shape": "512×3×32×32, T=4", "unit": "GB", "rounds": 1}
    figures = {"published": 3.51, "plain": 3.512, "lean": 1.49}
    rows = [size | {"who": f"STDL, {form}", "value": gb} for form, gb in figures.items()]
    over = {"what": "resnet18 over time steps", "unit": "GB", "who": "STDL, lean", "rounds": 1}
    curve = [over | {"shape": f"512×3×32×32, T={T}", "value": gb} for T, gb in ((1, 1.46), (32, 1.61))]
    write(mine, "memory", *rows, *curve)
    text = page(mine)
    assert "|  | in the paper | planned, plain | planned, lean |" in text
    assert "| cifar10, resnet18, 512×3×32×32, T=4: STDL | 3.51 | 3.51 | 1.49 |" in text
    assert "|  | T=1 | T=32 |" in text
    assert "| STDL, lean | 1.46 | 1.61 |" in text


def test_plots_are_embedded_by_links_that_work_from_the_page(checkout):
    write(checkout.published, "kernels", *kernel_rows(), date="2029-01-01T00:00:00+00:00")
    published = report.files_of(report.published_page({"kernels": runs(checkout.published / "kernels.csv")}))
    assert "](../bench/results/kernels.png)" in published[checkout.page]
    assert published[checkout.published / "kernels.png"].startswith(b"\x89PNG")
    (checkout.published / "kernels.png").write_bytes(b"")
    write(checkout.mine, "kernels", *kernel_rows())
    own = report.files_of(report.readers_page(checkout.mine))
    links = re.findall(r"!\[.*\]\((.*)\)", own[checkout.mine / places.PAGE])
    assert links == ["kernels.png", "../results/kernels.png"]
    assert checkout.mine / links[0] in own
    assert (checkout.mine / links[1]).exists()


def test_a_benchmark_without_a_plot_embeds_none(mine):
    write(mine, "call_overhead", {"what": "a call", "unit": "µs", "value": 5.0})
    assert "![" not in page(mine)


def test_no_results_are_an_error(mine):
    with pytest.raises(ValueError, match="has no results to report: run python -m bench first"):
        report.readers_page(mine)


def test_headings_are_the_benchmarks_own_first_lines(mine):
    for name in registry.BENCHMARKS:
        write(mine, name, {"what": "a step", "unit": "µs", "value": 5.0})
    found = re.findall(r"^## (.*)$", page(mine), flags=re.M)
    assert found == ["Conditions", *map(registry.title, registry.BENCHMARKS)]


def test_the_published_page_is_that_of_the_published_rows():
    published = {name: runs(places.PUBLISHED / f"{name}.csv") for name in registry.BENCHMARKS}
    shown = {name: found for name, found in published.items() if found}
    for name, found in shown.items():
        assert {row.benchmark for run in found for row in run.rows} == {name}
    plots = [name for name in shown if (places.PUBLISHED / f"{name}.png").exists()]
    assert {"kernels", "memory", "training"} <= set(plots)
    text = report.document(report.published_page(shown), plots)
    assert places.PUBLISHED_PAGE.read_text(encoding="utf-8") == text, "write it again: python -m bench publish"


def test_tables_and_numbers():
    def row(who: str, shape: str, value: float, **fields) -> Row:
        spread = Spread(value - 1, value, value + 1)
        return Row(**({"benchmark": "b", "what": "w", "unit": "x", "spread": spread} | fields), who=who, shape=shape)

    assert table(("a|b", "c"), [("1", "2")]) == "| a\\|b | c |\n| --- | --- |\n| 1 | 2 |"
    rows = [row("x", "1", 5), row("y", "2", 7, published=row("y", "2", 9))]
    found = pivot(rows, lambda r: r.who, lambda r: r.shape, figure, "corner")
    assert found.splitlines() == [
        "| corner | 1 | 2 |", "| --- | --- | --- |", "| x | 5 |  |", "| y |  | 7 |", "| *published* |  | 9 |",
    ]  # fmt: skip
    assert pivot([], lambda r: r.who, lambda r: r.shape, figure) == ""
    assert [number(value) for value in (0, 1234.5, 12.345, 0.0123, 0.00123)] == [
        "0", "1234", "12.3", "0.0123", "1.2e-03",
    ]  # fmt: skip
    assert figure(row("x", "1", 2, rounds=1)) == "2"
    assert figure(row("x", "1", 2, rounds=9)) == "2 (1–3)"
