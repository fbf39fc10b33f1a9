"""The documentation's site has every page in its navigation and every public name in its reference."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import stdl_engine

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("documentation_pages", ROOT / "docs" / "pages.py")
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)


def navigated(entries):
    """The pages of a part of the navigation."""
    for entry in entries:
        for target in entry.values():
            yield from navigated(target) if isinstance(target, list) else [target]


def test_every_page_is_in_the_navigation():
    found = list(navigated(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(found) == sorted([*pages.pages().values(), "reference.md"])
    assert {page.name for page in (ROOT / "docs").iterdir() if page.suffix == ".md"} <= set(found)


def test_the_reference_names_every_public_name():
    named = set(re.findall(r"^::: stdl_engine\.\w+\.(\w+)$", pages.reference(), re.MULTILINE))
    assert named == set(stdl_engine.__all__)


@pytest.mark.parametrize("name", stdl_engine.__all__)
def test_every_public_name_has_a_docstring(name):
    text = inspect.getdoc(getattr(stdl_engine, name))
    assert text
    assert not text.startswith(f"{name}(")  # what a dataclass without one is given


def test_every_link_of_a_page_leads_to_a_file(tmp_path):
    pages.write(tmp_path)
    count = 0
    for page in tmp_path.rglob("*.md"):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)", text):
            path = target.removeprefix(pages.REPOSITORY + "/")
            inside = path if path != target else None
            count += 1
            assert "://" in path or (ROOT / inside if inside else page.parent / path).exists(), (page, target)
    assert count > 30


def test_links_lead_where_they_did():
    text = "[a](memory.md#lean) ![b](../bench/results/memory.png) [c](../examples) [d](https://x.org/y) [e](#here)"
    assert pages.with_site_links(text, "docs/rules.md") == (
        f"[a](memory.md#lean) ![b](bench/results/memory.png) [c]({pages.REPOSITORY}/examples) [d](https://x.org/y) "
        "[e](#here)"
    )
    assert pages.with_site_links("[a](docs/rules.md)", "README.md") == "[a](rules.md)"
    assert pages.with_site_links("[a](../../docs/rules.md)", "kernels/lif/README.md") == "[a](../../rules.md)"


def test_the_site_is_built():
    """In seconds, where the extra `docs` is installed."""
    pytest.importorskip("zensical")
    for command in ([ROOT / "docs" / "pages.py"], ["-m", "zensical", "build", "--strict", "-f", ROOT / "mkdocs.yml"]):
        subprocess.run([sys.executable, *command], check=True, cwd=ROOT)
    html = (ROOT / "build" / "site" / "reference.html").read_text()
    assert all(f".{name}" in html for name in stdl_engine.__all__)
