"""A dataset and settings small enough to train in a second."""

import numpy as np
import pytest

from stdl_engine import trainer
from stdl_engine.train import main

from ..small_runs import one_thread  # noqa: F401

QUICK = [
    "--dataset", "npz", "--augment", "none", "--model", "resnet18", "--width", "0.0625",
    "--batch-size", "16", "--steps", "2", "--device", "cpu", "--lr", "0.05",
]  # fmt: skip


NOT_MEMORYS = ("name", "data", "seed", "epochs", "lr", "weight_decay", "validate", "workers", "start_from", "device")
"""Settings that the peak of a training step does not depend on."""


@pytest.fixture(autouse=True, scope="package")
def each_peak_predicted_once():
    """A prediction takes longer than these runs, many of which are of the same network."""
    known, predict_peak = {}, trainer.predict_peak

    def remembered(recipe, model, plan):
        key = (*(value for name, value in vars(recipe).items() if name not in NOT_MEMORYS), str(plan))
        if key not in known:
            known[key] = predict_peak(recipe, model, plan)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "predict_peak", remembered)
        yield


def write_data(path, samples=64, seed=0):
    """Two classes that differ in which half of the image is bright."""
    random = np.random.default_rng(seed)

    def split(n):
        y = np.arange(n) % 2
        x = random.integers(0, 60, (n, 8, 8, 1))
        x[y == 0, :4] += 150
        x[y == 1, 4:] += 150
        return x.astype(np.uint8), y

    (x_train, y_train), (x_test, y_test) = split(samples), split(24)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data.npz")


@pytest.fixture
def train(data, tmp_path, capsys):
    """Trains as typed; gives the exit code, what was printed and what was complained about."""

    def run(*arguments, recipe="digits", quick=True):
        settings = [*QUICK, "--data", str(data)] if quick else []
        code = main([*([recipe] if recipe else []), *settings, *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
