"""The project's own files agree with each other: packages, extras, commands, the Makefile and the workflow."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from setuptools import find_packages

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
