from dataclasses import replace

import pytest

from stdl_engine.analysis import ablations, budgets, neurons, steps
from stdl_engine.recipes import RECIPES
from stdl_engine.report import main

from ..small_runs import each_layer_measured_once, one_thread  # noqa: F401
from ..training.conftest import each_peak_predicted_once  # noqa: F401
from .nets import settings


@pytest.fixture(autouse=True, scope="package")
def paper_in_small():
    """The paper's network takes its time, on fake tensors too, and so do many runs."""
    small = replace(RECIPES["digits"], name="cifar10", model="tests.analysis.nets:three_units", budget="0.95")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "cifar10", small)
        patch.setattr(ablations, "HALF", "0.95")
        patch.setattr(steps, "STEPS", (1,))
        patch.setattr(neurons, "NEURONS", ("lif", "alif"))
        patch.setattr(budgets, "FRACTIONS", (1.0, 0.5))
        yield


@pytest.fixture(scope="package")
def report(tmp_path_factory):
    """The folder of a report of all analyses, for three rules."""
    folder = tmp_path_factory.mktemp("report")
    assert main([str(folder / "out"), *settings(folder, "--rules", "bptt", "ell", "stdl")]) == 0
    return folder / "out"
