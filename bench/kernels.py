"""Neurons per second of one layer, ours and other libraries'.

FusedLIF, the reference in plain PyTorch, `torch.compile` of the reference, SpikingJelly, snnTorch, Norse and sinabs.
One step and sequences of 4 and 16 steps; exact (a sequence from the reset state, with gradients through time) and
online (the past is a constant, and each step's backward runs before the next step). "forward" is the forward pass of
training, which keeps all that its backward needs. A layer that differs from the reference in spikes or gradients is not
timed. `Tensor.copy_` of the bytes that the step must move is timed in the same rounds: its time divided by a layer's is
the layer's share of what the memory allows. Sizes are steps × neurons.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import plots
from .agreement import difference
from .markdown import figure, number, pivot
from .peers import CONTENDERS, Contender, Layer, inputs
from .results import Row
from .session import Session
from .timing import Case, ratios
from .traffic import backward_bytes, copy, forward_bytes, name_of

TARGET = 4.0
TARGET_FROM = 2**22
"""Neurons and steps from which the target counts; below, a call costs more than the work in it."""
OURS = [name for name, contender in CONTENDERS.items() if contender.ours]
LIBRARIES = ("spikingjelly", "snntorch", "norse", "sinabs")
SIZES = {T: tuple(2**k for k in range(12, 27 - T.bit_length() + 1, 2)) for T in (1, 4, 16)}
QUICK_SIZES = {1: (2**12, 2**22), 4: (2**20,), 16: (2**18,)}
DRY_SIZES = {1: (2**8,), 2: (2**8,)}
DIRECTIONS = ("forward", "forward and backward")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One comparison: which gradient is computed, over how many steps."""

    online: bool
    T: int
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{'online' if self.online else 'exact'}, T={self.T}"


def run(session: Session) -> None:
    sizes = session.sizes(SIZES, QUICK_SIZES, DRY_SIZES)
    all_dtypes = session.device == "cuda" or session.dry
    dtypes = (torch.float32, torch.float16, torch.bfloat16) if all_dtypes else (torch.float32,)
    for dtype in dtypes:
        for T, some in sizes.items():
            for online in (True, False):
                compare(session, Setting(online=online, T=T, dtype=dtype), some)


def compare(
    session: Session, setting: Setting, sizes: tuple[int, ...], contenders: dict[str, Contender] = CONTENDERS
) -> None:
    """All contenders in one setting, over the sizes."""
    layers = {}
    for name, contender in contenders.items():
        layer = admit(session, contender, setting, sizes[0])
        if layer is not None:
            layers[name] = layer
    for neurons in sizes:
        for direction in DIRECTIONS:
            fields = {"shape": shape_of(setting, neurons), "dtype": name_of(setting.dtype)}
            with session.attempt(f"{direction}, {setting}", "M neurons/s", **fields):
                measure(session, setting, direction, neurons, layers, contenders)
            for layer in layers.values():
                layer.reset()


def admit(session: Session, contender: Contender, setting: Setting, neurons: int) -> Layer | None:
    """The contender's layer, if it is installed and computes what the reference does; otherwise a row says why not."""
    options = {"online": setting.online, "T": setting.T, "dtype": setting.dtype, "device": session.device}
    check = functools.partial(difference, contender, neurons=min(neurons, 2**16), **options)
    session.show(f"checking {contender.name}, {setting}")
    if session.quick and contender.name == "torch.compile" and setting.T > 4 and not setting.online:
        layer, reason = None, "left out of --quick: compiling 16 steps in a row takes a minute"
    else:
        layer, reason = contender.attempt(setting.online, setting.T, check)
    if reason:
        fields = {"who": contender.name, "dtype": name_of(setting.dtype)}
        session.refuse(f"{DIRECTIONS[1]}, {setting}", "M neurons/s", reason, **fields)
    return layer


def measure(
    session: Session, setting: Setting, direction: str, neurons: int, layers: dict[str, Layer],
    contenders: dict[str, Contender] = CONTENDERS,
) -> None:  # fmt: skip
    """Time one size and record neurons per second, shares of copy_, and the ratio of our rate to each other one."""
    backward = direction == DIRECTIONS[1]
    x, grad = inputs(neurons, setting.T, setting.dtype, session.device)
    moved = forward_bytes(setting.online, setting.dtype) + (backward_bytes(setting.dtype) if backward else 0)
    cases = {name: case(layer, setting, x, grad, backward) for name, layer in layers.items()}
    cases["copy_"] = copy(moved * neurons * setting.T, session.device)
    shape = shape_of(setting, neurons)
    updates = neurons * setting.T
    rounds = session.rounds if updates <= TARGET_FROM else max(5, session.rounds // 4)  # they take seconds each
    calls = 1 if session.dry else calls_for(updates)
    times = session.time(f"{direction}, {setting}, {shape}", cases, calls=calls, rounds=rounds)
    fields = {"shape": shape, "dtype": name_of(setting.dtype)}
    what = f"{direction}, {setting}"
    for name in layers:
        rate = [neurons * setting.T / t / 1e6 for t in times[name]]
        session.record(what, "M neurons/s", rate, who=name, **fields)
        session.record(what, "of copy_", ratios(times["copy_"], times[name]), who=name, **fields)
    counts = backward and updates >= TARGET_FROM
    for ours, theirs in pairs(layers, contenders):
        target = TARGET if counts and contenders[theirs].package in LIBRARIES else None
        ratio = ratios(times[theirs], times[ours])
        session.record(what, "x", ratio, who=ours, against=theirs, at_least=target, **fields)


def shape_of(setting: Setting, neurons: int) -> str:
    """Steps × neurons, such as 4×2^20."""
    return f"{setting.T}×2^{neurons.bit_length() - 1}"


def pairs(names: Iterable[str], contenders: dict[str, Contender]) -> list[tuple[str, str]]:
    """Pairs of each of ours with each of the others."""
    names = list(names)
    return [(a, b) for a in names for b in names if contenders[a].ours and not contenders[b].ours]


def case(layer: Layer, setting: Setting, x: Tensor, grad: Tensor, backward: bool) -> Case:
    """What is timed: T steps forward, or forward and backward."""
    x = x * layer.factor
    if setting.online:
        pairs = [(x_t.clone().requires_grad_(), grad_t) for x_t, grad_t in zip(x, grad, strict=True)]
        layer.reset()

        def step() -> None:  # continues from the previous state, which is a constant
            for x_t, grad_t in pairs:
                spikes = layer.step(x_t)
                if backward:
                    torch.autograd.grad(spikes, x_t, grad_t)
                layer.detach()

    else:
        forward = layer.sequence
        if setting.T == 1:  # so that no library takes a detour over a sequence of length one
            forward, x, grad = layer.step, x[0].clone(), grad[0]
        x.requires_grad_()

        def step() -> None:
            layer.reset()
            spikes = forward(x)
            if backward:
                torch.autograd.grad(spikes, x, grad)

    return Case(step)


def calls_for(updates: int) -> int:
    """Calls in one sample: enough for some milliseconds."""
    return max(1, min(50, 2**18 // updates))


def tables(rows: Sequence[Row]) -> list[str]:
    """Rates, and ratios of ours to the others, for each setting and dtype."""
    parts = []
    for what, dtype in dict.fromkeys((row.what, row.dtype) for row in rows):
        mine = [row for row in rows if (row.what, row.dtype) == (what, dtype)]
        rates = [row for row in mine if row.unit == "M neurons/s"]
        shares = [row for row in mine if row.unit == "of copy_" and row.who in OURS]
        versus = [row for row in mine if row.unit == "x"]
        parts.append(f"### {what}, {dtype}")
        parts.append(pivot([*rates, *shares], _rate_or_share, _shape, _median, "M neurons/s"))
        parts.append(pivot(versus, lambda row: f"{row.who} / {row.against}", _shape, figure, "ratio of speeds"))
    return parts


def _rate_or_share(row: Row) -> str:
    return f"{row.who}, share of `copy_`" if row.unit == "of copy_" else row.who


def _shape(row: Row) -> str:
    return row.shape


def _median(row: Row) -> str:
    return number(row.spread.p50)


def plot(rows: Sequence[Row]) -> bytes | None:
    """Rates of forward and backward over the size, in float32."""
    panels: dict[str, list[plots.Line]] = {}
    both = f"{DIRECTIONS[1]}, "
    rows = [row for row in rows if row.unit == "M neurons/s" and row.dtype == "float32" and row.what.startswith(both)]
    for what in dict.fromkeys(row.what for row in rows):
        mine = [row for row in rows if row.what == what]
        panels[what] = plots.lines_of(mine, lambda row: 2.0 ** int(row.shape.rpartition("^")[2]))
    labels = plots.Labels(x="neurons", y="M neurons/s", powers=True)
    return plots.lines(panels, labels, order=list(CONTENDERS)) if panels else None
