"""`python -m bench.memopt_points FILE`: SpikingJelly's memory optimiser in bytes and in work, point by point.

The file is for `python -m stdl_engine.plan RECIPE --curve CURVE --beside FILE`, which shows these points in one picture
with what our rules can do. Peaks are counted on fake tensors by the tracker that counts ours, and are those of real
tensors to the byte (`python -m bench memory` measures both). Work is in multiply-adds of convolutions and linear
layers: what is wrapped runs forward once more.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from stdl_engine.atomic_files import write_atomically
from stdl_engine.planning.fake import faking
from stdl_engine.planning.work import BACKWARD, FORWARD
from stdl_engine.recipes import RECIPES, Recipe
from stdl_engine.tradeoff import Point, as_csv

from . import jelly, memopt
from .libraries import missing
from .memory import fake_peak

SIZES = ((1.0, 512, 4), (1.0, 8, 4), (0.25, 64, 4))
"""Width, batch and time steps: those that the benchmarks `memory` and `training` compare at."""
WAYS = ("SpikingJelly BPTT", *(name for name, variant in jelly.VARIANTS.items() if variant.optimized))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memopt_points", description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="where to write the points, as CSV")
    file = parser.parse_args(arguments).file
    if reason := missing("spikingjelly"):
        raise SystemExit(f"bench.memopt_points: {reason}")
    pages = [as_csv(list(points(recipe)), recipe) for recipe in map(recipe_of, SIZES)]
    write_atomically(file, pages[0] + "".join(page.partition("\n")[2] for page in pages[1:]))


def recipe_of(size: tuple[float, int, int]) -> Recipe:
    """ResNet-18 as the benchmarks train it."""
    width, batch, T = size
    return replace(RECIPES["cifar10"], width=width, batch_size=batch, steps=T)


def points(recipe: Recipe, ways: Sequence[str] = WAYS) -> Iterator[Point]:
    """What each way to train takes."""
    width, batch, T = recipe.width, recipe.batch_size, recipe.steps
    for name in ways:
        wrapped = memopt.wrapped_by(jelly.VARIANTS[name], width, batch, T)
        series, _, level = name.partition(", ")
        yield Point(
            rule=series,
            memory=level or "plain",
            batch_size=batch,
            steps=T,
            peak_bytes=fake_peak(name, T, batch, width),
            cost=relative_work(wrapped, width),
            subnetworks=1,
            recompute=tuple(names(wrapped)),
        )


def names(wrapped: memopt.Wrapped) -> Iterator[str]:
    """What runs again: units by their number, halves of a block as unit.1 and unit.2."""
    for unit, parts in enumerate(wrapped):
        suffixes = {"whole": "", "first": ".1", "second": ".2"}
        yield from (f"{unit}{suffix}" for part, suffix in suffixes.items() if part in parts)


def relative_work(wrapped: memopt.Wrapped, width: float) -> float:
    """What a training step computes, relative to one that runs nothing again."""
    counts = multiply_adds(width)
    units = list(jelly.resnet18("m", width=width))
    again = 0
    for unit, (module, parts) in enumerate(zip(units, wrapped, strict=False)):
        for part in parts:
            layers = module if part == "whole" else module.halves[part]
            prefixes = {layer: name for name, layer in module.named_modules()}
            again += sum(counts.get(f"{unit}.{prefixes[layer]}", 0) for layer in layers.modules() if layer in prefixes)
    return 1 + again * FORWARD / ((FORWARD + BACKWARD) * sum(counts.values()))


def multiply_adds(width: float) -> dict[str, int]:
    """Of each convolution and linear layer, by name, for one image of 3 × 32 × 32."""
    counts: dict[str, int] = {}
    with faking():
        model = jelly.resnet18("m", width=width)
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):

                def count(layer: nn.Module, _: object, output: Tensor, name: str = name) -> None:
                    counts[name] = layer.weight[0].numel() * output[0, 0].numel()

                layer.register_forward_hook(count)
        jelly.logits(model, torch.empty(2, 3, 32, 32), 1, "m")
    return counts


if __name__ == "__main__":
    main()
