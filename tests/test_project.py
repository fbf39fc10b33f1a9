"""The project's own files agree with each other: packages, extras, commands, the Makefile and the workflow."""

import ast
import fnmatch
import importlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from setuptools import find_packages

import stdl_engine
from stdl_engine.extras import EXTRAS, PACKAGES

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def names(requirements):
    """Of packages, without versions and markers, and without the project itself."""
    found = {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}
    return found - {"stdl-engine"}


def test_every_package_is_found():
    """A folder of modules without __init__.py would be missing from the wheel."""
    include = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = set(find_packages(str(ROOT), include=include))
    folders = {path.parent for path in (ROOT / "stdl_engine").rglob("*.py")} | {
        ROOT / "stdl_engine" / path.parent.relative_to(ROOT) for path in (ROOT / "kernels").rglob("*.py")
    }
    assert packages == {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert "stdl_engine.kernels.spike_conv" in packages


def test_the_core_is_slim():
    assert names(PROJECT["project"]["dependencies"]) == {"torch", "triton", "numpy", "numba"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_bring_what_the_code_says_they_do(extra):
    brought = names(PROJECT["project"]["optional-dependencies"][extra])
    modules = {PACKAGES.get(module, module) for module in EXTRAS[extra]} - {"pillow"}  # comes with torchvision
    assert brought == modules


def test_scripts_exist():
    for target in PROJECT["project"]["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_every_pinned_range_has_an_exact_version():
    """constraints.txt pins all that pyproject.toml asks for."""
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    asked = PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()
    assert {name.lower() for group in asked for name in names(group)} <= pinned


def test_editors_and_type_checkers_see_what_is_imported_later():
    """The imports for them in stdl_engine/__init__.py are the names, and the homes, that are found at run time."""
    tree = ast.parse((ROOT / "stdl_engine" / "__init__.py").read_text())
    seen = {
        "." + node.module: {alias.name for alias in node.names}
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    }
    assert seen == {home: set(names) for home, names in stdl_engine._HOMES.items()}
    assert sorted(stdl_engine.__all__) == sorted(name for names in seen.values() for name in names)


@pytest.mark.parametrize("neuron", ["lif", "plif", "alif"])
def test_every_neuron_has_the_same_public_steps(neuron):
    """One that returns a new state, and one over the state."""
    assert {f"{neuron}_step", f"{neuron}_step_"} <= set(stdl_engine.__all__)


def test_modules_that_the_type_checker_is_told_of_exist():
    paths = [*(ROOT / "stdl_engine").rglob("*.py"), *(ROOT / "stdl_engine" / "kernels").rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    told = [name for override in PROJECT["tool"]["mypy"]["overrides"] for name in override["module"]]
    ours = [name for name in told if name.startswith("stdl_engine")]
    assert ours
    assert [name for name in ours if not fnmatch.filter(modules, name)] == []


def targets():
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_workflow_calls_targets_that_exist():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert all(command.startswith("make ") for command in commands)
    called = {command.split()[1] for command in commands}
    assert {"lint", "test", "test-wheel", "test-avx2"} == called <= targets()
    versions = {f"3.{minor}" for minor in (11, 12, 13)}
    assert set(workflow["jobs"]["python"]["strategy"]["matrix"]["python"]) == versions
    classifiers = PROJECT["project"]["classifiers"]
    assert {c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)} == versions


def test_ci_runs_the_same():
    called = set(re.findall(r"^make (\S+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    assert called <= targets()
    assert {"lint", "test", "test-wheel", "test-avx2"} <= called
