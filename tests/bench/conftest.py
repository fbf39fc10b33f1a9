"""No test of the benchmarks writes where a reader's or the project's own results are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench import places


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> SimpleNamespace:
    """The places of results, all in a folder of the test's own."""
    found = SimpleNamespace(
        mine=tmp_path / "bench" / "mine",
        published=tmp_path / "bench" / "results",
        page=tmp_path / "docs" / "benchmarks.md",
    )
    found.published.mkdir(parents=True)
    found.page.parent.mkdir()
    monkeypatch.setattr(places, "MINE", found.mine)
    monkeypatch.setattr(places, "PUBLISHED", found.published)
    monkeypatch.setattr(places, "PUBLISHED_PAGE", found.page)
    return found
