"""Where results are kept: the user's own in an ignored folder, the published ones in files that git tracks."""

from __future__ import annotations

from pathlib import Path

BENCH = Path(__file__).parent
MINE = BENCH / "mine"
"""Rows, plots and page of your own runs of `python -m bench`; git ignores it."""
PUBLISHED = BENCH / "results"
"""Rows and plots that `python -m bench publish` writes, and nothing else does."""
PUBLISHED_PAGE = BENCH.parent / "docs" / "benchmarks.md"
PAGE = "benchmarks.md"
"""The page's name in the folder of a run."""
