"""The pages of the documentation site: `python docs/pages.py` writes them into build/docs, and `make docs` builds it.

They are the pages of this folder, the other pages of the repository, their pictures, and a reference of the public
names, built from the docstrings.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path

import stdl_engine

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://github.com/stdl-engine/stdl-engine/blob/main"

HOMES = {
    ".neurons": "Neurons",
    ".rules": "Learning rules",
    ".models": "Models",
    ".convert": "Models of other libraries",
    ".runs": "Runs",
    ".kernels": "Steps and surrogates",
}
"""The modules that public names come from, in the order of the reference, and its headings for them."""


def pages() -> dict[str, str]:
    """Every page that is a file: where it is in the repository, and where in the site."""
    found = [*ROOT.glob("docs/*.md"), *ROOT.glob("kernels/**/README.md")]
    found += [ROOT / name for name in ("README.md", "bench/README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return {path: site_path(path) for path in sorted(page.relative_to(ROOT).as_posix() for page in found)}


def pictures() -> dict[str, str]:
    """The same for pictures."""
    found = [*ROOT.glob("docs/*.svg"), *ROOT.glob("bench/results/*.png")]
    return {path: site_path(path) for path in sorted(picture.relative_to(ROOT).as_posix() for picture in found)}


def site_path(path: str) -> str:
    """Where a file of the repository is in the site: files of docs/ are at the top, and README.md is the start page."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def reference() -> str:
    """The page of all public names, as directives for mkdocstrings."""
    assert HOMES.keys() == stdl_engine._HOMES.keys(), "HOMES must have a heading for each module of public names"
    lines = ["# Reference", "", "All names that can be imported from `stdl_engine`, built from their docstrings.", ""]
    for home, heading in HOMES.items():
        lines += [f"## {heading}", ""]
        for name in stdl_engine._HOMES[home]:
            lines += [f"::: stdl_engine{home}.{name}", "    options:", f"      heading: {name}", ""]
    return "\n".join(lines)


def with_site_links(markdown: str, path: str) -> str:
    """A page whose links point to pages and pictures of the site, and to the repository for all other files."""
    here = posixpath.dirname(site_path(path))
    files = pages() | pictures()

    def replace(link: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link["target"]))
        new = posixpath.relpath(files[target], here or ".") if target in files else f"{REPOSITORY}/{target}"
        return f"]({new}{link['anchor'] or ''})"

    return re.sub(r"\]\((?!\w+:|#)(?P<target>[^)#]+)(?P<anchor>#[^)]*)?\)", replace, markdown)


def write(folder: Path) -> None:
    """All pages and pictures, with links that work in the site, in a folder to build it from."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, place in pages().items():
        _new(folder / place).write_text(with_site_links((ROOT / path).read_text(), path))
    for path, place in pictures().items():
        shutil.copyfile(ROOT / path, _new(folder / place))
    _new(folder / "reference.md").write_text(reference())


def _new(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    write(ROOT / "build" / "docs")
