"""Kernels launched per time step on a GPU, counted without one: `python -m bench.launches` prints them as JSON.

Our layers run in Triton's interpreter, where each launch is one call. Plain PyTorch launches a kernel for every
operator that neither is a view nor makes an empty tensor. SpikingJelly's form for sequences is plain PyTorch on CPU; on
a GPU it is one Triton kernel in each direction, as its source says.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stdl_engine import FusedALIF, FusedLIF, FusedPLIF

from .peers import CONTENDERS, Layer, inputs, step_by_step

NEURONS, STEPS = 64, 4
NO_KERNEL = ("empty", "empty_like", "empty_strided", "new_empty", "detach", "alias", "_unsafe_view", "is_same_size")


class Counter(TorchDispatchMode):
    """Operators that would launch a kernel, and kernels launched in Triton's interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.inside = 0, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition("::")[2]
        ours = func.namespace == "stdl_engine"  # its kernels are counted as they run
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not (self.inside or ours or view or name in NO_KERNEL):
            self.count += 1
        return func(*args, **(kwargs or {}))

    def launched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Count the interpreter's launch, but not the operators inside it."""

        def launch(*args, **kwargs):
            self.count += 1
            self.inside, before = True, self.inside
            try:
                return run(*args, **kwargs)
            finally:
                self.inside = before

        return launch


def count(layer: Layer, online: bool, T: int) -> dict[str, float]:
    """Launches per step, forward and backward, of a layer that already has a state."""
    from triton.runtime.interpreter import GridExecutor

    x, grad = inputs(NEURONS, T)
    x = (x * layer.factor).requires_grad_()
    steps = [x_t.detach().requires_grad_() for x_t in x]
    by_step = T == 1
    layer.step(steps[0]) if by_step else layer.sequence(x)
    counter = Counter()
    original = GridExecutor.__call__
    GridExecutor.__call__ = counter.launched(original)
    found = {"forward": 0, "backward": 0}
    try:
        with counter:
            for x_t, grad_t in zip(steps, grad, strict=True) if by_step else [(x, grad)]:
                layer.detach()
                before = counter.count
                spikes = layer.step(x_t) if by_step else layer.sequence(x_t)
                middle = counter.count
                torch.autograd.grad(spikes, x_t, grad_t)
                found["forward"] += middle - before
                found["backward"] += counter.count - middle
    finally:
        GridExecutor.__call__ = original
    return {direction: number / T for direction, number in found.items()}


def ours(kind: type, online: bool, T: int) -> Layer:
    """One of our layers on the Triton backend."""
    many = T > 1
    neuron = kind(online=online, step_mode="m" if many else "s", backend="triton").requires_grad_(False)
    return Layer(neuron, neuron if many else step_by_step(neuron), neuron.reset, neuron.detach_state)


def count_all() -> list[dict[str, Any]]:
    """Launches per step of every library that is installed."""
    rows = []
    for online, T in ((True, 1), (True, STEPS), (False, 1), (False, STEPS)):
        layers = {kind.__name__: ours(kind, online, T) for kind in (FusedLIF, FusedPLIF, FusedALIF)}
        for name, contender in CONTENDERS.items():
            # For the others only exact sequences are compared.
            if not contender.ours and name != "torch.compile" and not contender.missing and not (online and T > 1):
                layers[name] = contender.build(online, T)
        for name, layer in layers.items():
            row = {"who": name, "what": f"{'online' if online else 'exact'}, T={T}", "note": ""}
            if name == "SpikingJelly LIFNode" and T > 1:
                row |= {"forward": 1 / T, "backward": 1 / T, "note": "one Triton kernel each way, by its source"}
            else:
                row |= count(layer, online, T)
            rows.append(row)
    return rows


def in_interpreter() -> list[dict[str, Any]]:
    """`count_all` in a process of its own, because the interpreter must be chosen before triton is imported."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.launches"]
    result = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"counting kernel launches in Triton's interpreter failed:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(count_all()))
