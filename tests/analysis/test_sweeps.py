"""Sweeps and ablations: their figures are those of the runs, and rows that change nothing are known for it."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stdl_engine.analysis import ablations, budgets
from stdl_engine.analysis.exhibits import mean_of, said
from stdl_engine.analysis.runs_of_report import in_words, told
from stdl_engine.recipes import RECIPES


@pytest.fixture(scope="module")
def values(report):
    return json.loads((report / "report.json").read_text())


def runs_with(values, **settings):
    return [
        run["summary"] for run in values["runs"] if all(run["settings"][name] == settings[name] for name in settings)
    ]


def as_dicts(values, name):
    figure = values["figures"][name]
    return [dict(zip(figure["columns"], row, strict=True)) for row in figure["rows"]]


@pytest.mark.parametrize(("name", "setting", "read"), [("steps", "steps", int), ("neurons", "neuron", str.lower)])
def test_figures_are_those_of_the_runs(values, name, setting, read):
    rows = as_dicts(values, name)
    assert len({row["value"] for row in rows}) > 1
    for row in rows:
        common = {"steps": 2, "neuron": "lif", "seed": 0, "variant": "stdl", "layerwise": False}
        if row["rule"] == "stdl":
            common["budget"] = "0.95"
        (summary,) = runs_with(values, **{**common, "rule": row["rule"], setting: read(row["value"])})
        assert row["accuracy"] == summary["test_accuracy"]
        assert row["peak_bytes"] == summary["peak_bytes"]
        assert row["milliseconds_per_sample"] == pytest.approx(1000 / summary["samples_per_second"])


def test_budgets_differ_in_how_they_cut(values):
    rows = as_dicts(values, "budgets")
    assert rows[-1]["value"] == "BPTT"
    assert [int(row["subnetworks"]) for row in rows[:-1]] == sorted(int(row["subnetworks"]) for row in rows[:-1])
    assert {row["value"] for row in rows} >= {"0.95", "BPTT"}
    assert len(rows) >= 3


def test_ablations(values):
    rows = {row["ablation"]: row for row in as_dicts(values, "ablations")}
    assert len(rows) == len(ablations.ROWS) - len(ablations.GROUPS)  # three units have no three groups of several
    (linear,) = runs_with(values, rule="stdl", variant="linear")
    assert rows["auxiliary: linear"]["accuracy"] == linear["test_accuracy"]
    assert rows["auxiliary: linear"]["peak_bytes_at_papers_size"] != rows["auxiliary: 3×3 convs"]["peak_bytes"]
    for row in rows.values():
        if row["same_as_stdl"]:
            assert row["accuracy"] == rows["STDL: later layers, greedy"]["accuracy"]


def test_a_network_without_residual_blocks_has_none_to_replace():
    study = SimpleNamespace(
        recipe=RECIPES["digits"], unit_names=lambda: range(8), over_seeds=lambda rule, **changes: [rule, changes]
    )
    same = {row.label: same for row, _, same in ablations.rows(study)}
    assert same["auxiliary: 3×3 convs"]
    assert same["auxiliary: 1×1 convs"]
    assert not same["auxiliary: linear"]
    assert not same["layer-wise, auxiliary nets"]


def test_budgets_in_bytes_are_no_fractions():
    study = SimpleNamespace(recipe=replace(RECIPES["digits"], budget="20MB"))
    with pytest.raises(ValueError, match="compared as fractions"):
        budgets.choices(study)


def test_means_and_words():
    assert mean_of([None, None]) == (None, None)
    assert mean_of([1.0, None]) == (1.0, None)
    assert mean_of([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert said([0.5, 0.7], 100, 1) == "60.0 ± 14.1"
    assert said([]) == "–"
    assert [in_words(s) for s in (5, 100, 6000)] == ["5 s", "2 min", "1.7 h"]
    assert told(replace(RECIPES["digits"], rule="even")) == "EVEN K=3, LIF, T=4, seed 0"
