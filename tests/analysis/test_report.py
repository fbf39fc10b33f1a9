"""The report as a command: what it writes, keeps, resumes and refuses."""

import csv
import json
import re
import shlex
from html.parser import HTMLParser

import numpy as np
import pytest

from stdl_engine.analysis import ANALYSES
from stdl_engine.analysis.runs_of_report import canonical
from stdl_engine.command_line import recipe_in
from stdl_engine.recipes import from_dict
from stdl_engine.report import main
from stdl_engine.train import parse_options

from .nets import settings


class Tags(HTMLParser):
    """All tags of a page with their attributes, and that each one is closed."""

    ALONE = ("meta", "line", "br")

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page(report):
    text = (report / "index.html").read_text()
    tags = Tags(text)
    assert not tags.open
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags.found}
    assert "http" not in re.sub(r"<pre>.*</pre>", "", text, flags=re.DOTALL)
    links = [attrs["href"] for tag, attrs in tags.found if tag == "a"]
    assert all((report / link).is_file() for link in links if not link.startswith("#"))
    ids = {attrs["id"] for _, attrs in tags.found if "id" in attrs}
    assert {link[1:] for link in links if link.startswith("#")} <= ids
    assert set(ANALYSES) <= ids


def test_every_figure_has_title_axes_and_caption(report):
    text = (report / "index.html").read_text()
    figures = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
    assert len(figures) >= 6
    for figure in figures:
        assert re.search(r"<h3>\w.*?</h3>", figure)
        assert re.search(r"<figcaption><p>.{40,}T=.*</p>", figure), figure[:300]
        for chart in re.findall(r"<svg.*?</svg>", figure, re.DOTALL):
            assert re.search(r"<title>[^<]+</title>", chart)
            assert re.search(r'class="x-label[^>]*>[^<]+<', chart)
            assert re.search(r'class="y-label[^>]*>[^<]+<', chart)
            assert "nan" not in chart.lower()
    assert "<svg" in text


def test_every_figure_has_its_values(report):
    values = json.loads((report / "report.json").read_text())
    for name, figure in values["figures"].items():
        with (report / "data" / f"{name}.csv").open() as file:
            header, *rows = csv.reader(file)
        assert header == figure["columns"]
        assert len(rows) == len(figure["rows"]) > 0
        assert "nan" not in str(rows).lower()
    assert {"cka", "probe", "rates", "gradients"} <= values["figures"].keys()
    assert "NaN" not in (report / "report.json").read_text()


def test_commands_train_the_runs(report):
    values = json.loads((report / "report.json").read_text())
    own, *commands = values["commands"]
    assert own.startswith("python -m stdl_engine.report")
    assert len(commands) == len(values["runs"])
    for command, run in zip(commands, values["runs"], strict=True):
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "stdl_engine.train"]
        options, _, _ = parse_options(words[3:])
        meant = from_dict(run["settings"] | {"in_shape": options.in_shape, "num_classes": options.num_classes})
        assert canonical(recipe_in(options)) == meant


def test_runs_are_kept(report, capsys):
    before = {path: path.stat().st_mtime_ns for path in (report / "runs").rglob("*")}
    page = (report / "index.html").read_text()
    arguments = settings(report.parent, "--rules", "bptt", "ell", "stdl")
    assert main([str(report), *arguments]) == 0
    assert "runs are there already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (report / "runs").rglob("*")} == before
    assert (report / "index.html").read_text() == page


def test_a_killed_run_is_gone_on_with(report, tmp_path, capsys):
    """A run that lacks its end, as a kill leaves it, is resumed and not begun again."""
    arguments = settings(report.parent, "--rules", "bptt", "--only", "probe")
    assert main([str(tmp_path / "out"), *arguments, "--epochs", "2"]) == 0
    (run,) = (tmp_path / "out" / "runs").iterdir()
    rows = (run / "metrics.jsonl").read_text()
    *_, last = sorted(run.glob("checkpoint-*"))
    last.unlink()
    for name in ("summary.json", "metrics.jsonl"):
        (run / name).unlink()
    assert main([str(tmp_path / "out"), *arguments, "--epochs", "2"]) == 0
    assert "continuing after epoch 1" in (run / "log.txt").read_text()

    def figures(text):
        return [json.loads(line)["test_loss"] for line in text.splitlines()]

    assert figures((run / "metrics.jsonl").read_text()) == figures(rows)


def test_other_settings_are_other_runs(report, tmp_path):
    arguments = settings(report.parent, "--rules", "sltt", "--only", "probe")
    assert main([str(tmp_path / "out"), *arguments]) == 0
    assert main([str(tmp_path / "out"), *arguments, "--seed", "5"]) == 0
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2


def test_runs_of_the_users_own(report, tmp_path, capsys):
    shown = {"rule": ("bptt", "ell"), "steps": (2,), "neuron": ("lif",)}  # by BPTT with two seeds, and by ELL
    known = json.loads((report / "report.json").read_text())["runs"]
    runs = [run["folder"] for run in known if all(run["settings"][name] in shown[name] for name in shown)]
    assert len(runs) == 3
    folder = tmp_path / "out"
    assert main([str(folder), "--run", *map(str, runs), "--only", "cka", "probe", "rates"]) == 0
    assert not (folder / "runs").exists()
    values = json.loads((folder / "report.json").read_text())
    assert {row[0] for row in values["figures"]["cka"]["rows"]} == {"BPTT, another seed", "ELL"}
    assert len(values["commands"]) == 1


def refused(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("stdl_engine.report: ")
    assert said.count("\n") == 1
    return said


def test_bad_options(report, tmp_path, capsys):
    out = tmp_path / "out"
    assert "name a folder" in refused(capsys)
    assert "name a folder" in refused(capsys, "--only", "cka")
    assert "unknown recipe 'x'" in refused(capsys, out, "--recipe", "x")
    assert "unknown rule 'x'" in refused(capsys, out, "--rules", "x")
    assert "unknown analysis 'x'" in refused(capsys, out, "--only", "cka,x")
    assert "named twice" in refused(capsys, out, "--only", "cka,cka")
    assert "--seeds is 0" in refused(capsys, out, "--seeds", "0")
    assert "leave --rule out" in refused(capsys, out, "--rule", "stdl")
    assert "leave --lr out" in refused(capsys, out, "--run", report, "--lr", "1")
    assert "is no folder of a run" in refused(capsys, out, "--run", tmp_path)
    assert "--epochs is 0" in refused(capsys, out, "--epochs", "0")
    assert not out.exists()


def test_bad_folders(report, tmp_path, capsys):
    run = next((report / "runs").glob("stdl-*"))
    assert "holds a run" in refused(capsys, run)
    (tmp_path / "index.html").write_text("mine")
    assert "no report" in refused(capsys, tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"


def test_a_rule_that_was_not_trained(report, tmp_path, capsys):
    run = next((report / "runs").glob("ell-*"))
    said = refused(capsys, tmp_path / "out", "--run", run, "--rules", "stdl", "--only", "probe")
    assert "was trained by stdl" in said
    assert "there is only one" in refused(capsys, tmp_path / "out", "--run", run, "--only", "cka")


def test_a_run_of_another_model(report, tmp_path, capsys):
    arguments = settings(report.parent, "--rules", "sltt", "--only", "probe")
    other = ["--model", "tests.analysis.nets:one_unit"]
    assert main([str(tmp_path / "one"), *arguments, *other]) == 0  # a network of one unit is no obstacle
    capsys.readouterr()
    runs = [next((report / "runs").iterdir()), next((tmp_path / "one" / "runs").iterdir())]
    assert "of another kind" in refused(capsys, tmp_path / "out", "--run", *runs)


def test_a_run_that_is_not_over(report, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text((next((report / "runs").iterdir()) / "config.json").read_text())
    assert "is not over" in refused(capsys, tmp_path / "out", "--run", run)


@pytest.mark.parametrize("part", ["train", "test"])
def test_empty_data(report, tmp_path, capsys, part):
    with np.load(report.parent / "data.npz") as values:
        arrays = dict(values)
    for name in ("x", "y"):
        arrays[f"{name}_{part}"] = arrays[f"{name}_{part}"][:0]
    np.savez(tmp_path / "data.npz", **arrays)
    refused(capsys, tmp_path / "out", *settings(tmp_path))
    assert not (tmp_path / "out").exists()
