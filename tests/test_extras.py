"""A library of an extra that is not installed: one sentence that says what to type."""

from __future__ import annotations

import sys

import pytest

from stdl_engine import train
from stdl_engine.data import load_dataset
from stdl_engine.extras import MissingExtra, extra

HINT = "scikit-learn is not installed: pip install 'stdl-engine[train]'."


@pytest.fixture
def no_sklearn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)


def import_sklearn():
    from sklearn.datasets import load_digits

    return load_digits


@pytest.mark.usefixtures("no_sklearn")
def test_pip_has_another_name_for_it():
    with pytest.raises(MissingExtra) as error, extra("train"):
        import_sklearn()
    assert str(error.value) == HINT
    assert isinstance(error.value, ImportError)


@pytest.mark.usefixtures("no_sklearn")
def test_a_module_run_as_a_command_prints_it_and_ends(capsys):
    with pytest.raises(SystemExit) as end, extra("train", "__main__"), extra("train"):
        import_sklearn()
    assert end.value.code == 2
    assert capsys.readouterr().err == HINT + "\n"


def test_a_library_of_no_extra_is_someone_elses_error():
    with pytest.raises(ModuleNotFoundError) as error, extra("train"):
        import surely_not_there  # noqa: F401
    assert not isinstance(error.value, MissingExtra)


@pytest.mark.usefixtures("no_sklearn")
def test_a_dataset_that_imports_late_says_so_too(tmp_path, capsys):
    with pytest.raises(MissingExtra, match="scikit-learn is not installed"):
        load_dataset("digits")
    assert train.main(["digits", "--epochs", "1", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"stdl_engine.train: {HINT}\n"
