"""SpikingJelly's memory optimiser at each of its levels, for the network of `bench.jelly`.

Its levels 2 to 4 search by measuring on CUDA, and its first level looks at values, which fake tensors do not have. So
its result is reproduced here with its own `checkpoint_module` and by its own rules, measured with our tracker:

- level 1 wraps whole units, half of them ("speed"), three quarters ("balanced") or all ("memory"), those with the
  largest input first: they run again in backward, and their input is kept as bits where it is spikes;
- level 2 wraps the halves of a block in place of the block, wherever that lowers the peak;
- level 3 cuts wrapped layers into chunks of time, if each can be computed on its own. None can be here: a half has
  batch norm, whose statistics are over all time steps, or a neuron;
- level 4 unwraps whatever the peak does not need wrapped, the costliest first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import nn

from stdl_engine.planning.fake import faking

from . import jelly
from .workload import SGD

SHARES = {"speed": 0.5, "balanced": 0.75, "memory": 1.0}
UNITS = 9
"""Of ResNet-18: a convolution and eight blocks."""

Wrapped = tuple[frozenset[str], ...]
"""Which parts of each unit are wrapped: none, "whole", or the halves of a block, "first" and "second"."""

NOTHING, WHOLE, HALVES = frozenset(), frozenset({"whole"}), frozenset({"first", "second"})


def level_1(share: str = "memory", width: float = 1.0) -> Wrapped:
    """Whole units, by the size of their inputs."""
    sizes = input_sizes(width)
    chosen = sorted(range(UNITS), key=lambda unit: -sizes[unit])[: math.ceil(UNITS * SHARES[share])]
    return tuple(WHOLE if unit in chosen else NOTHING for unit in range(UNITS))


def input_sizes(width: float) -> list[int]:
    """Elements of each unit's input for one image of 3 × 32 × 32."""
    model, side = jelly.resnet18("m", width=width), 32
    sizes = [3 * side**2]
    for block in model[1:-1]:
        sizes.append(block.conv1.in_channels * side**2)
        side //= block.conv1.stride[0]
    return sizes


def searched(level: int, peak: Callable[[Wrapped], int]) -> Wrapped:
    """Level 2, or level 4, which continues from there; `peak` measures a training step."""
    found = level_1()
    lowest = peak(found)
    blocks = list(range(1, UNITS))
    while blocks:  # a block that did not help may help once another is split
        for unit in blocks:
            trial = (*found[:unit], HALVES, *found[unit + 1 :])
            if (size := peak(trial)) < lowest:
                found, lowest = trial, size
                blocks.remove(unit)
                break
        else:
            break
    if level < 4:
        return found
    for unit in range(UNITS):
        for part in sorted(found[unit]):
            trial = (*found[:unit], found[unit] - {part}, *found[unit + 1 :])
            if (size := peak(trial)) <= lowest:
                found, lowest = trial, size
    return found


@functools.cache
def found_by_level(level: int, width: float, batch: int, T: int) -> Wrapped:
    """The result of a level's search for this network and batch, on fake tensors."""

    def peak(wrapped: Wrapped) -> int:
        with faking():
            x, y = torch.empty(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.int64)
            model = apply(jelly.resnet18("m", width=width), wrapped)
            return jelly.peak_bytes(jelly.Trainer(model, SGD, "m"), x, y, T)

    return searched(level, peak)


def apply(model: nn.Sequential, wrapped: Wrapped) -> nn.Sequential:
    """The network with these parts recomputed in backward."""
    for unit, parts in enumerate(wrapped):
        if parts == WHOLE:
            model[unit] = run_again(model[unit], of_spikes=unit > 0)
        for half in parts & HALVES:
            model[unit].halves[half] = run_again(model[unit].halves[half], of_spikes=True)
    return model


def run_again(module: nn.Module, *, of_spikes: bool) -> nn.Module:
    """The module, wrapped so that it is recomputed in backward from its input."""
    from spikingjelly.activation_based import memopt

    return memopt.checkpoint_module(module, compressor=memopt.BitSpikeCompressor() if of_spikes else None)


def wrapped_by(variant: jelly.Variant, width: float, batch: int, T: int) -> Wrapped:
    """What one of SpikingJelly's ways to train wraps."""
    if variant.optimized in SHARES:
        return level_1(variant.optimized, width)
    return found_by_level(int(variant.optimized), width, batch, T) if variant.optimized else (NOTHING,) * UNITS


def trainer(
    variant: jelly.Variant, width: float, batch: int, T: int,
    prepare: Callable[[nn.Sequential], nn.Sequential] = lambda model: model,
) -> jelly.Trainer:  # fmt: skip
    """An object that trains ResNet-18 in one of SpikingJelly's ways; `prepare` may change the model before it is
    wrapped."""
    model = prepare(jelly.resnet18(variant.mode, online=variant.online, width=width))
    apply(model, wrapped_by(variant, width, batch, T))
    return jelly.Trainer(model, SGD, variant.mode, online=variant.online)
