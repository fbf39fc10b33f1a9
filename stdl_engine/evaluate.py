"""Test the trained network of a run: `python -m stdl_engine.evaluate DIR [--best] [--data PATH] [--json] ...`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .extras import extra

with extra("train", __name__):
    import tyro

    from .building import find_device, load_data
    from .command_line import parse, run_command
    from .data import Batches
    from .printer import Printer
    from .process_memory import ProcessPeak
    from .runs import RunFolder, trained_network
    from .scoring import score
    from .stopping import StopSignals


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to test, and how."""

    folder: tyro.conf.Positional[Path]
    """The folder of a run."""
    best: bool = False
    """Use the weights of the best epoch instead of the last checkpoint's."""
    data: Path | None = None
    """Where the data is; by default where it was in training."""
    steps: int | None = None
    """Time steps T; by default those of training."""
    batch_size: int | None = None
    """Samples per batch; by default as in training."""
    device: str = "auto"
    """"auto" uses a GPU if there is one; or "cpu", "cuda", "cuda:1"."""
    json: bool = False
    """Print JSON."""


def main(arguments: list[str] | None = None) -> int:
    return run_command("evaluate", command, arguments)


def command(arguments: list[str], stop: StopSignals) -> None:
    if not arguments:
        raise ValueError("name the folder of a run to test.")
    described = "Test the trained network of a run."
    options = parse(Options, None, arguments, "python -m stdl_engine.evaluate", described)
    result = evaluate(options)
    if options.json:
        Printer().say(json.dumps(result))
    else:
        Printer().say(
            f"{result['recipe']} by {result['rule']}: test accuracy {result['test_accuracy']:.2%} on "
            f"{result['samples']} samples ({result['checkpoint']})"
        )


def evaluate(options: Options) -> dict[str, Any]:
    """Test a run's last checkpoint, or its best weights, on its test set."""
    device = find_device(options.device)
    model, recipe, path, chunk = trained_network(RunFolder.open(options.folder), options.best)
    changes = {name: getattr(options, name) for name in ("data", "steps", "batch_size")}
    recipe = replace(recipe, augment="none", **{name: value for name, value in changes.items() if value is not None})
    data = load_data(recipe)
    if (tuple(data.in_shape), data.num_classes, data.events) != (recipe.in_shape, recipe.num_classes, recipe.events):
        raise ValueError(
            f"the run was trained on {_samples(recipe)}, and this data has {_samples(data)}: pass the same data by "
            "--data."
        )
    process = ProcessPeak.start()
    batches = Batches(data.test, batch_size=recipe.batch_size, training=False, workers=recipe.workers)
    seen = score(model.to(device), batches, recipe, device, chunk=chunk)
    return {
        "recipe": recipe.name,
        "rule": recipe.rule,
        "test_accuracy": seen.accuracy,
        "test_loss": seen.loss,
        "samples": seen.samples,
        "firing_rates": seen.firing_rates,
        "process_peak_bytes": process.peak,
        "checkpoint": path.name,
    }


def _samples(of: Any) -> str:
    kind = "sequences of frames" if of.events else "images"
    return f"{kind} {tuple(of.in_shape)} of {of.num_classes} classes"


if __name__ == "__main__":
    sys.exit(main())
