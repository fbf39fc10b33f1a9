"""STDL in lean memory peaks at a tenth of plain BPTT's bytes, and does not grow with the time steps.

The planner's figures for the paper's networks beside the published ones; the peak over the number of time steps, ours
and SpikingJelly's, for ResNet-18 at batch 512 on fake tensors; and a small network on real tensors, where the same code
is measured. What an operator takes and gives back inside itself is not counted, for no one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from stdl_engine.models import build_model
from stdl_engine.planning.planner import faking, measure, predict
from stdl_engine.recipes import RECIPES
from stdl_engine.rules import RULES

from . import jelly, plots
from .memory_table import PUBLISHED_GB, RULE_NAMES, peak_gb
from .session import Session

GB = 1e9
SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
STEPS, QUICK_STEPS = (1, 2, 4, 8, 16, 32), (1, 2, 4)
SHOWN = ("bptt", "sltt", "ell", "stdl")
QUICK_SHOWN = ("bptt", "stdl", "SpikingJelly BPTT", "SpikingJelly BPTT, memory optimiser")
"""Over time steps with --quick."""
FORMS = {"paper": "plain", "lean": "lean"}
BATCH, SMALL_BATCH, SMALL_WIDTH = 512, 8, 0.25
JELLY: dict[str, Callable[[float], jelly.Trainer]] = {
    "SpikingJelly BPTT": lambda width: jelly.Trainer(jelly.resnet18("m", width=width), SGD, "m"),
    "SpikingJelly BPTT, step by step": lambda width: jelly.Trainer(jelly.resnet18("s", width=width), SGD, "s"),
    "SpikingJelly BPTT, memory optimiser": lambda width: jelly.Trainer(
        jelly.optimized(jelly.resnet18("m", width=width)), SGD, "m"
    ),
    "SpikingJelly SLTT": lambda width: jelly.Trainer(
        jelly.resnet18("s", online=True, width=width), SGD, "s", online=True
    ),
}


def run(session: Session) -> None:
    published(session, ("cifar10",) if session.quick else tuple(PUBLISHED_GB))
    over_time(session, QUICK_STEPS if session.quick else STEPS)
    small(session)


def published(session: Session, recipes: tuple[str, ...]) -> None:
    """Planned peaks of the paper's rows beside the published ones."""
    for name in recipes:
        batch, T, figures = PUBLISHED_GB[name]
        recipe = replace(RECIPES[name], batch_size=batch, steps=T)
        fields = {"shape": f"{batch}×{'×'.join(map(str, recipe.in_shape))}, T={T}", "dtype": "float32"}
        what = f"{name}, {recipe.model}"
        for rule, paper in zip(RULE_NAMES, figures, strict=True):
            if rule not in SHOWN:
                continue
            session.record(what, "GB", paper, who=f"{rule.upper()}, published", **fields)
            for memory, form in FORMS.items():
                session.show(f"planning {name}, {rule.upper()}, {form}")
                found = planned_gb(name, batch, rule, memory, T)
                session.record(what, "GB", found, who=f"{rule.upper()}, {form}", **fields)
                if memory == "paper":
                    against = {"who": f"{rule.upper()}, {form}", "against": f"{rule.upper()}, published"}
                    session.record(what, "x", found / paper, **against, **fields)


@functools.cache
def planned_gb(recipe: str, batch: int, rule: str, memory: str, T: int) -> float:
    """The planner's peak for a recipe at this batch and T."""
    return peak_gb(replace(RECIPES[recipe], batch_size=batch, steps=T), rule, memory)


def over_time(session: Session, steps: tuple[int, ...]) -> None:
    """Peaks of ResNet-18 over T: ours by the planner, SpikingJelly's network by the same tracker."""
    what, found = "resnet18 over time steps", {}
    for T in steps:
        fields = {"shape": f"{BATCH}×3×32×32, T={T}", "dtype": "float32"}
        for rule in (rule for rule in SHOWN if rule in QUICK_SHOWN or not session.quick):
            for memory, form in FORMS.items():
                session.show(f"planning resnet18, {rule.upper()}, {form}, T={T}")
                found[rule, memory] = planned_gb("cifar10", BATCH, rule, memory, T)
                session.record(what, "GB", found[rule, memory], who=f"{rule.upper()}, {form}", **fields)
        for who in (who for who in JELLY if who in QUICK_SHOWN or not session.quick):
            session.show(f"planning resnet18, {who}, T={T}")
            found[who] = fake_peak(who, T) / GB
            session.record(what, "GB", found[who], who=who, **fields)
            pair = {"who": "STDL, lean", "against": who}
            session.record(what, "x less", found[who] / found["stdl", "lean"], **pair, **fields)
        pair = {"who": "STDL, lean", "against": "BPTT, plain"}
        less = found["bptt", "paper"] / found["stdl", "lean"]
        session.record(what, "x less", less, at_least=10 if T == 4 else None, **pair, **fields)
    rows = [row for row in session.rows if row.what == what and row.unit == "GB"]
    session.keep("memory.png", plots.memory_over_time(rows))


def fake_peak(who: str, T: int, batch: int = BATCH, width: float = 1.0) -> int:
    """Peak bytes of one of SpikingJelly's training steps, on fake tensors."""
    with faking():
        x, y = torch.empty(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.int64)
        return jelly.peak_bytes(JELLY[who](width), x, y, T)


def small(session: Session, T: int = 4) -> None:
    """Real tensors: a small network, ours and SpikingJelly's, and whether fake tensors say the same."""
    x, y = batch_of(SMALL_BATCH, session.device)
    what = f"resnet18 at width {SMALL_WIDTH}, real tensors"
    fields = {"shape": f"{SMALL_BATCH}×3×32×32, T={T}", "dtype": "float32"}
    for rule in SHOWN:
        options = {"budget": "published"} if rule == "stdl" else {}
        for memory, form in FORMS.items():
            model = build_model("resnet18", width=SMALL_WIDTH)
            who = f"{rule.upper()}, {form}"
            session.show(f"measuring {who}")
            planned = predict(RULES[rule], model, SGD, x, T, memory=memory, **options).peak_bytes
            trained = RULES[rule](model.to(session.device), SGD, x, memory=memory, **options)
            measured = measure(trained, x, y, T).peak_bytes
            session.record(what, "MB", measured / 1e6, who=who, **fields)
            session.record(what, "x", planned / measured, who=who, against="planned / measured", **fields)
    for who, make in JELLY.items():
        session.show(f"measuring {who}")
        trainer = make(SMALL_WIDTH)
        trainer.model.to(session.device)
        measured = jelly.peak_bytes(trainer, x, y, T)
        session.record(what, "MB", measured / 1e6, who=who, **fields)
        planned = fake_peak(who, T, SMALL_BATCH, SMALL_WIDTH)
        session.record(what, "x", planned / measured, who=who, against="planned / measured", **fields)


def batch_of(size: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 3, 32, 32, generator=generator)
    return x.to(device), torch.randint(10, (size,), generator=generator).to(device)
