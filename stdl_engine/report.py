"""The paper's analyses of your own networks, on one page: `python -m stdl_engine.report OUT [--recipe R] [--only A,B]`.

    OUT/index.html    the page: works offline, no scripts, pictures inside
    OUT/data/*.csv    the values behind every figure
    OUT/pictures/     its charts as files
    OUT/report.json   settings, runs, versions, and all values once more
    OUT/runs/         one folder for each run, named after its settings
    OUT/plans/        predicted peaks, which are kept as well

Missing runs are trained and existing ones are kept, so the same command continues a report that was stopped or killed.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .extras import extra

with extra("train", __name__):
    from .analysis import ANALYSES
    from .analysis.charts import standalone
    from .analysis.exhibits import Section
    from .analysis.page import page
    from .analysis.runs_of_report import Trained, command_of, in_words, train_missing
    from .analysis.study import Choice, Study
    from .command_line import given, last_value, parse, recipe_in, run_command, with_config
    from .comparison import COMPARED, SEEDS
    from .locked_folder import LockedFolder
    from .printer import Printer
    from .recipes import RECIPES, Recipe, as_dict
    from .rules import RULES
    from .runs import commit, versions
    from .stopping import StopSignals

DEFAULT = "digits"
EPOCHS = 3
"""The epochs if neither a recipe nor a number of epochs is named, so that all analyses take minutes."""


@dataclass(frozen=True, kw_only=True)
class Options(Recipe):
    """A recipe's settings, and what to report about them."""

    recipe: str = DEFAULT
    """The recipe to train; its other fields are options too. The default is digits, for 3 epochs."""
    only: tuple[str, ...] = ()
    """The analyses to make, by name; by default all, or with --run those that look at trained networks."""
    rules: tuple[str, ...] = COMPARED
    """The rules to compare."""
    seeds: int = 1
    """How many runs, each with its own seed, are averaged for each figure."""
    run: tuple[Path, ...] = ()
    """Folders of your own runs to look at, instead of training."""
    config: Path | None = None
    """A file of settings, TOML or JSON (a run's config.json), that override the recipe's."""

    def __post_init__(self) -> None:
        """Checks nothing: the recipe checks itself when it is made from these options."""


class ReportFolder(LockedFolder):
    """The folder of a report, which may be overwritten by a new one."""

    settings_file = "report.json"
    what = "report"

    def refuse_if_taken(self) -> None:
        """Reject a folder whose files do not belong to a report."""
        for name, what in (("config.json", "run"), ("compare.json", "comparison")):
            if (self.path / name).exists():
                raise ValueError(f"{self.path} holds a {what}: choose another folder for the report.")
        if (self.path / "index.html").exists() and not (self.path / self.settings_file).exists():
            raise ValueError(f"{self.path} holds a page that is no report: choose another folder.")


def main(arguments: list[str] | None = None) -> int:
    return run_command("report", command, arguments)


def command(arguments: list[str], stop: StopSignals) -> None:
    if {"-h", "--help"} & set(arguments):
        parse_options(["--help"])  # prints and exits
    if not arguments or arguments[0].startswith("-"):
        raise ValueError("name a folder to write the report to, first of all: python -m stdl_engine.report OUT.")
    out, choice, names = Path(arguments[0]), *parse_options(arguments[1:])
    printer = Printer()
    with ReportFolder.create(out, printer.say) as folder:
        report(folder, choice, names, ["python", "-m", "stdl_engine.report", *arguments], printer, stop)


def parse_options(arguments: list[str]) -> tuple[Choice, list[str]]:
    """What was asked for, and the names of the analyses."""
    typed = given(arguments)
    name = last_value("--recipe", arguments) or DEFAULT
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}: choose from {', '.join(RECIPES)}.")
    settings, configured = with_config(RECIPES[name], arguments)
    settings |= {"rule": "stdl"}  # a budget is for STDL, whatever the recipe's own rule
    if not typed & {"recipe", "epochs"} and "epochs" not in configured:
        settings |= {"epochs": EPOCHS}
    described = f"Analyses of trained networks on one page. Analyses: {', '.join(ANALYSES)}."
    options = parse(Options, Options(**settings, recipe=name), arguments, "python -m stdl_engine.report OUT", described)
    if "rule" in typed:
        raise ValueError("a report compares rules: name them by --rules, and leave --rule out.")
    if options.run and (others := sorted(typed - {"run", "rules", "only"})):
        raise ValueError(f"--run looks at runs with their own settings: leave --{others[0].replace('_', '-')} out.")
    rules = _named(options.rules, RULES, "rule")
    names = _named([name for names in options.only for name in names.split(",")], ANALYSES, "analysis")
    if problem := SEEDS.problem(options.seeds):
        raise ValueError(f"--seeds is {options.seeds}: {problem}.")
    of_trained = [name for name, analysis in ANALYSES.items() if analysis.of_trained]
    if options.run and (others := [name for name in names if name not in of_trained]):
        raise ValueError(f"{others[0]} trains networks of its own, which --run does not: leave one of them out.")
    choice = Choice(recipe_in(options), tuple(rules), options.seeds, options.run, "rules" in typed)
    return choice, names or (of_trained if options.run else list(ANALYSES))


def _named(names: Sequence[str], known: dict[str, Any], what: str) -> list[str]:
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}: choose from {', '.join(known)}.")
        if list(names).count(name) > 1:
            raise ValueError(f"the {what} {name} is named twice: name it once.")
    return list(names)


def report(
    folder: ReportFolder, choice: Choice, names: Sequence[str], typed: Sequence[str], printer: Printer,
    stop: StopSignals,
) -> None:  # fmt: skip
    """Train what is missing, analyse it, and write the page."""
    began = time.perf_counter()
    study = Study(choice, folder.path, printer, stop)
    runs = list(dict.fromkeys(run for name in names for run in ANALYSES[name].needs(study)))
    train_missing([run for run in runs if run not in study.given], printer, stop)
    sections: list[tuple[str, Section]] = []
    for number, name in enumerate(names, 1):
        printer.say(f"analysis {number} of {len(names)}: {name}")
        start = time.perf_counter()
        sections.append((name, ANALYSES[name].analyse(study)))
        printer.say(f"  {in_words(time.perf_counter() - start)}")
    write(folder, study, sections, runs, typed)
    printer.say(f"{folder.path / 'index.html'}, after {in_words(time.perf_counter() - began)}")


def write(
    folder: ReportFolder, study: Study, sections: Sequence[tuple[str, Section]], runs: Sequence[Trained],
    typed: Sequence[str],
) -> None:  # fmt: skip
    """All files of a report, the page last."""
    exhibits = [exhibit for _, section in sections for exhibit in section.exhibits]
    files: dict[str, str | bytes] = {}
    for exhibit in exhibits:
        files[f"data/{exhibit.name}.csv"] = exhibit.as_csv()
        files |= {f"data/{name}": content for name, content in exhibit.files.items()}
        for number, picture in enumerate(exhibit.pictures, 1):
            files[f"pictures/{exhibit.name}-{number}.svg"] = standalone(picture)
    for name, content in files.items():
        (folder.path / name).parent.mkdir(exist_ok=True)
        folder.write(name, content)
    for path in (*folder.path.glob("data/*"), *folder.path.glob("pictures/*.svg")):
        if str(path.relative_to(folder.path)) not in files:
            path.unlink()  # left by an earlier report that had other figures
    commands = [shlex.join(typed), *(command_of(run.recipe, run.path) for run in runs if run not in study.given)]
    packages = versions()
    made_with = {
        "commit": commit(),
        "versions": packages,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }
    values = {
        "settings": as_dict(study.recipe),
        "rules": list(study.choice.rules),
        "seeds": study.choice.seeds,
        "analyses": {name: [exhibit.name for exhibit in section.exhibits] for name, section in sections},
        "figures": {e.name: {"title": e.title, "columns": e.columns, "rows": e.rows} for e in exhibits},
        "runs": [{"folder": str(run.path), "settings": as_dict(run.recipe), "summary": run.summary} for run in runs],
        "commands": commands,
        **made_with,
    }
    folder.write("report.json", json.dumps(values, indent=1) + "\n")
    end = ", ".join(f"{name} {number}" for name, number in packages.items())
    lead = f"{study.described()}."
    if study.choice.seeds > 1:
        lead += " Figures are means over seeds; ± is the sample standard deviation."
    title = f"{study.recipe.name}: learning rules side by side"
    folder.write("index.html", page(title, lead, sections, commands, f"{end}; {made_with['machine']}."))


if __name__ == "__main__":
    sys.exit(main())
