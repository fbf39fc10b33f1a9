"""`python -m stdl_engine.plan`, as typed."""

import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest

from stdl_engine import plan
from stdl_engine.building import predict_peak
from stdl_engine.plan import main
from stdl_engine.planning import tradeoff
from stdl_engine.recipes import RECIPES, find
from stdl_engine.tradeoff import Point, as_csv, read_points

SMALL = ["--width", "0.0625", "--batch-size", "8", "--steps", "2"]


@pytest.fixture(autouse=True, scope="module")
def each_step_planned_once():
    """Many of these commands ask for the same plans."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("predict_peak", "predict_others"):
            patch.setattr(plan, name, remembering(getattr(plan, name)))
        yield


def remembering(predict):
    known = {}

    def remembered(recipe):
        if recipe not in known:
            found = predict(recipe)
            known[recipe] = list(found) if isinstance(found, Iterator) else found
        return known[recipe]

    return remembered


def as_json(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json(capsys):
    answer = as_json(capsys, "resnet18", *SMALL)
    names = [
        "rule",
        "memory",
        "batch_size",
        "steps",
        "peak_bytes",
        "parts",
        "subnetworks",
        "recompute",
        "cost",
        "chunk",
    ]
    assert list(answer) == names
    assert (answer["rule"], answer["memory"], answer["batch_size"], answer["steps"]) == ("STDL", "lean", 8, 2)
    assert sum(answer["parts"].values()) == answer["peak_bytes"]
    assert answer["subnetworks"][0]["units"] == ["4C3", "4R"]
    assert answer["subnetworks"][0]["auxiliary"] == ["AP(k2s2)", "16R(s2)", "32R(s2)", "32R", "10FC"]


def test_table(capsys):
    assert main(["svhn", *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "peak" in shown
    assert "4C3" in shown
    assert "transient" in shown


def test_comparison_has_every_rule_and_ratios_to_both_forms_of_bptt(capsys):
    assert main(["digits", *SMALL, "--compare"]) == 0
    shown = capsys.readouterr().out
    for word in ("BPTT", "SLTT", "DECOLLE", "ELL", "STDL", "1.00×", "less than lean"):
        assert word in shown


def test_fit_is_the_largest_batch(capsys):
    small = ["digits", "--width", "0.0625", "--steps", "1"]
    for answer in as_json(capsys, *small, "--fit", "3MB"):
        assert answer["peak_bytes"] <= 3_000_000
        one_more = ["--chunk", "1", "--batch-size", str(answer["batch_size"] + 1)]
        peak = as_json(capsys, *small, "--rule", answer["rule"], *one_more)["peak_bytes"]
        assert peak > 3_000_000


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_fit_says_how_far_it_is(monkeypatch, capsys):
    """On a terminal, on standard error; the answer stays alone on standard output, in the units of the question."""
    small = ["resnet18", "--width", "0.0625", "--steps", "1", "--rule", "sltt", "--fit"]
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main([*small, "3MiB"]) == 0
    said, shown = sys.stderr.getvalue(), capsys.readouterr().out
    assert re.search(r"fitting sltt \(1 of 1\): batch \d+ needs \d+\.\d\d MiB", said)
    assert re.search(r"fitting sltt \(1 of 1\): batch \d+, 2\.\d\d MiB\n", said)
    assert "fitting" not in shown
    assert "largest batch within 3MiB" in shown
    assert re.search(r"│ +2\.\d\d MiB │", shown)


def test_a_budget_in_powers_of_1024_is_answered_so(capsys):
    assert main(["resnet18", *SMALL, "--budget", "2.5MiB"]) == 0
    shown = capsys.readouterr().out
    assert 2 < float(re.search(r"peak (\d\.\d\d) MiB", shown)[1]) <= 2.5
    assert " MB" not in shown


def test_what_else_a_recipe_says_is_planned(capsys):
    """Neuron, ablations and layout change the answer as they change the run."""
    plain = as_json(capsys, "digits", *SMALL)
    neuron = as_json(capsys, "digits", *SMALL, "--neuron", "alif")
    assert neuron["parts"]["states"] > plain["parts"]["states"]
    linear = as_json(capsys, "digits", *SMALL, "--variant", "linear")
    assert all(part["auxiliary"] in ([], ["10FC"]) for part in linear["subnetworks"])
    layerwise = as_json(capsys, "digits", *SMALL, "--variant", "linear", "--budget", "1", "--layerwise")
    assert [len(part["units"]) for part in layerwise["subnetworks"][:-1]] == [1] * 7
    contiguous = as_json(capsys, "digits", *SMALL, "--no-channels-last")
    assert contiguous["peak_bytes"] != plain["peak_bytes"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_at_its_own_batch_size(capsys, recipe):
    answer = as_json(capsys, recipe, "--steps", "1", "--rule", "stdl")
    assert answer["batch_size"] == RECIPES[recipe].batch_size
    assert answer["peak_bytes"] > (1e6 if RECIPES[recipe].width < 1 else 1e8)


def test_a_rule_that_keeps_to_bytes_names_the_pieces_that_run_again(capsys):
    plain = as_json(capsys, "resnet18", *SMALL, "--rule", "bptt")
    assert (plain["recompute"], plain["cost"]) == ([], 1.0)
    budget = int(0.7 * plain["peak_bytes"])
    lean = as_json(capsys, "resnet18", *SMALL, "--rule", "bptt", "--budget", str(budget))
    assert lean["peak_bytes"] <= budget
    assert set(lean["recompute"]) & {"1/0:4C3", "1/1:4R.1", "1/1:4R.2"}
    assert 1 < lean["cost"] < 4 / 3


def test_time_steps_together(capsys):
    one, two = (as_json(capsys, "resnet18", *SMALL, "--rule", "sltt", "--chunk", size) for size in ("1", "2"))
    assert (one["chunk"], two["chunk"]) == (1, 2)
    assert two["peak_bytes"] > one["peak_bytes"]
    assert (
        as_json(capsys, "resnet18", *SMALL, "--rule", "sltt", "--chunk", "auto", "--budget", str(two["peak_bytes"]))[
            "chunk"
        ]
        == 2
    )
    assert main(["resnet18", *SMALL, "--rule", "sltt", "--chunk", "2"]) == 0
    assert "2 time steps run together" in capsys.readouterr().out


def test_auto_shows_what_else_there_is(capsys):
    arguments = ["resnet18", *SMALL, "--rule", "auto", "--budget", "3MB"]
    found = as_json(capsys, *arguments)
    assert found["peak_bytes"] <= 3_000_000
    assert (found["rule"], bool(found["recompute"])) == ("BPTT", True)
    assert [other["rule"] for other in found["others"]] == ["BPTT"] * 3 + ["SLTT"] * 2 + ["STDL"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "BPTT (chosen)" in shown
    assert "run again in backward: 1/0:4C3" in shown


def test_the_curve_is_values_and_a_picture(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tradeoff, "POINTS", 3)
    answer = as_json(capsys, "resnet18", *SMALL, "--rule", "sltt", "--curve", str(tmp_path / "curve"))
    peaks = [found["peak_bytes"] for found in answer]
    assert len(peaks) == 3
    assert peaks == sorted(peaks, reverse=True)
    with (tmp_path / "curve.csv").open() as file:
        assert [int(row["peak_bytes"]) for row in csv.DictReader(file)] == peaks
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    for other in ("--fit=2GB", "--budget=2GB", "--memory=paper"):
        assert main(["resnet18", "--curve", str(tmp_path / "no"), other]) == 2
    assert not (tmp_path / "no.csv").exists()


def point(**changes):
    figures = {"rule": "Another", "memory": "level 2", "batch_size": 8, "steps": 2, "peak_bytes": 1_234_567}
    return Point(**figures | {"cost": 1.25, "subnetworks": 1, "recompute": ("0", "3.1")} | changes)


def small_recipe(**changes):
    return replace(find("resnet18"), width=0.0625, batch_size=8, steps=2, **changes)


def test_points_of_others_are_a_series_of_their_own(capsys, tmp_path, monkeypatch):
    planned = predict_peak(small_recipe(rule="sltt"))
    monkeypatch.setattr(plan, "trade_off", lambda recipe, rule: [planned, replace(planned, peak_bytes=1_000_000)])
    others = tmp_path / "others.csv"
    pages = [as_csv([point()], small_recipe()), as_csv([point(batch_size=16)], replace(small_recipe(), batch_size=16))]
    others.write_text(pages[0] + pages[1].partition("\n")[2])
    command = ["resnet18", *SMALL, "--rule", "sltt", "--curve", str(tmp_path / "curve")]
    assert main(command) == 0
    alone = (tmp_path / "curve.png").read_bytes()
    assert main([*command, "--beside", str(others)]) == 0
    said = capsys.readouterr()
    assert "Another, level 2" in said.out
    assert f"left out: 1 points in {others}" in said.err.replace("\n", "")
    with (tmp_path / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["rule"] for row in rows] == ["SLTT", "SLTT", "Another"]
    assert (rows[-1]["peak_bytes"], rows[-1]["cost"], rows[-1]["recompute"]) == ("1234567", "1.2500", "0 3.1")
    assert {(row["model"], row["width"], row["batch_size"], row["steps"]) for row in rows} == {
        ("resnet18", "0.0625", "8", "2")
    }
    assert (tmp_path / "curve.png").read_bytes() != alone
    again = as_json(capsys, *command, "--beside", str(tmp_path / "curve.csv"))  # what it has written, it reads
    assert [found["rule"] for found in again] == ["SLTT", "SLTT", "SLTT", "SLTT", "Another"]
    assert again[-1] == json.loads(json.dumps(asdict(point())))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch_size": 16}, "it has points with batch_size 16 (here 8)."),
        ({"steps": 4}, "it has points with steps 4 (here 2)."),
        ({"width": 0.125}, "it has points with width 0.125 (here 0.0625)."),
        ({"neuron": "plif"}, "it has points with neuron plif (here lif)."),
        ({"precision": "bf16"}, "it has points with precision bf16 (here fp32)."),
        ({"optimizer": "adamw"}, "it has points with optimizer adamw (here sgd)."),
        ({"in_shape": (3, 64, 64)}, "it has points with in_shape 3x64x64 (here 3x32x32)."),
    ],
    ids=str,
)
def test_points_of_something_else_are_not_shown(tmp_path, changes, says):
    (tmp_path / "others.csv").write_text(as_csv([point()], replace(small_recipe(), **changes)))
    with pytest.raises(ValueError, match="has no point of this network, batch and time steps") as error:
        read_points(tmp_path / "others.csv", small_recipe())
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no column rule: pass a file of points that --curve has written."),
        ("rule,memory\nA,b\n", "has no column batch_size: pass a file of points that --curve has written."),
        (b"\xff\xfe\x00", "is no file of points ('utf-8' codec"),
        (("1234567", "many"), "is broken at row 2 (invalid literal for int() with base 10: 'many')"),
        (("1234567", "-3"), "is broken at row 2 (peak_bytes and cost must be larger than 0)"),
        (("1.2500", "nan"), "is broken at row 2 (peak_bytes and cost must be larger than 0)"),
    ],
    ids=str,
)
def test_a_file_that_has_no_points_is_one_line(capsys, tmp_path, text, says):
    if isinstance(text, tuple):
        text = as_csv([point()], small_recipe()).replace(*text)
    (tmp_path / "others.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    arguments = ["--curve", str(tmp_path / "curve"), "--beside", str(tmp_path / "others.csv")]
    assert main(["resnet18", *SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "curve.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["resnet18", "--beside", "x.csv"], "--beside is for --curve: pass both, or neither."),
        (["resnet18", "--curve", "x", "--beside", "no/such.csv"], "no/such.csv"),
        (["resnet99"], "unknown recipe or model 'resnet99': the recipes are digits"),
        (["resnet18", "--rule", "magic"], "unknown rule 'magic': choose from bptt"),
        (["resnet18", "--batch-size", "1"], "--batch-size is 1: it must be 2 or more"),
        (["resnet18", "--steps", "0"], "--steps is 0: it must be 1 or more"),
        (["resnet18", "--budget", "lots"], "cannot read the budget 'lots'"),
        (["digits", "--width", "0.0625", "--steps", "1", "--budget", "1kB"], "the smallest budget that works is"),
        (["resnet18", *SMALL, "--budget", "0.01"], "the smallest budget that works is"),
        (["digits", "--width", "0.0625", "--steps", "1", "--fit", "1kB"], "the smallest batch, 2, needs"),
        (["resnet18", "--fit", "1GB", "--rule", "auto"], "auto is a choice among rules: name another"),
        (["resnet18", "--curve", "x", "--rule", "auto"], "auto is a choice among rules: name another"),
        (["vgg11", "--budget", "published"], 'budget "published" exists for'),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_errors_are_one_line(capsys, arguments, says):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1
