"""Test the trained network of a run: `python -m stdl_engine.evaluate DIR [--data PATH] [--steps T] [--json]`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .extras import MissingExtra, extra

with extra("train", __name__):
    import tyro
    from rich.console import Console
    from torch import Tensor

    from . import checkpoints
    from .data import Batches
    from .rules.batch import split_frames
    from .rules.inference import accuracy, mean_logits
    from .runs import RunFolder
    from .trainer import device_of


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to test, and how."""

    folder: tyro.conf.Positional[Path]
    """The folder of a run."""
    data: Path | None = None
    """Where the data is; by default where it was in training."""
    steps: int | None = None
    """Time steps T; by default those of training."""
    batch_size: int | None = None
    device: str = "auto"
    json: bool = False
    """Print JSON."""


def main(arguments: list[str] | None = None) -> int:
    options = tyro.cli(Options, args=arguments, prog="python -m stdl_engine.evaluate", description=__doc__)
    try:
        found = evaluate(options)
    except (ValueError, OSError, MissingExtra) as error:
        print(f"stdl_engine.evaluate: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found))
    else:
        Console(soft_wrap=True).print(
            f"{found['recipe']} by {found['rule']}: test accuracy {found['test_accuracy']:.2%} on {found['samples']} "
            f"samples ({found['checkpoint']})",
            highlight=False,
        )
    return 0


def evaluate(options: Options) -> dict[str, Any]:
    """Accuracy of a run's last checkpoint on its test set."""
    folder = RunFolder.open(options.folder)
    recipe = folder.recipe
    changes = {name: getattr(options, name) for name in ("data", "steps", "batch_size")}
    recipe = replace(recipe, augment="none", **{name: value for name, value in changes.items() if value is not None})
    path, state, _ = checkpoints.load_last(folder.path)
    device = device_of(options.device)
    model = recipe.build().to(device)
    model.load_state_dict(state["rule"]["model"])
    data = recipe.load_data()
    if (data.in_shape, data.num_classes) != (recipe.in_shape, recipe.num_classes):
        raise ValueError(
            f"the run was trained on samples {recipe.in_shape} of {recipe.num_classes} classes, and this data has "
            f"{data.in_shape} of {data.num_classes}: pass the same data by --data."
        )
    batches = Batches(data.test, batch_size=recipe.batch_size, training=False, workers=recipe.workers)

    def predict(x: Tensor) -> Tensor:
        return mean_logits(model, split_frames(x.to(device), recipe.steps, recipe.in_shape))

    found, samples = accuracy(predict, batches.epoch(0))
    result = {"recipe": recipe.name, "rule": recipe.rule, "test_accuracy": found, "samples": samples}
    return {**result, "checkpoint": path.name}


if __name__ == "__main__":
    sys.exit(main())
