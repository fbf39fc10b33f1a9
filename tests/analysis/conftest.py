import pytest

from stdl_engine.report import main

from ..small_runs import each_layer_measured_once, one_thread  # noqa: F401
from .nets import settings


@pytest.fixture(scope="package")
def report(tmp_path_factory):
    """A report of three rules: its folder, and that of its data."""
    folder = tmp_path_factory.mktemp("report")
    assert main([str(folder / "out"), *settings(folder, "--rules", "bptt", "ell", "stdl")]) == 0
    return folder / "out"
