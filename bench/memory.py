"""Peak bytes of a training step: planned, in the paper, over the number of time steps, and on real tensors.

The planner's figures for the paper's networks beside the paper's own; the peak over the number of time steps, ours and
SpikingJelly's, for ResNet-18 at batch 512 on fake tensors; and a small network on real tensors, measured by the same
code. "plain" keeps what the paper's form keeps, and "lean" keeps less, for the same gradients. What an operator
allocates and frees inside itself is not counted for anyone. GB are 1e9 bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch

from stdl_engine.models import build_model
from stdl_engine.planning.fake import faking
from stdl_engine.planning.planner import measure, predict
from stdl_engine.recipes import RECIPES
from stdl_engine.rules import RULES

from . import jelly, memopt, plots
from .libraries import missing
from .markdown import figure, number, pivot, under
from .memory_table import PUBLISHED_GB, RULE_NAMES, peak_gb
from .results import Row
from .session import Session
from .workload import SGD, batch_of

GB = 1e9
OVER_TIME = "resnet18 over time steps"
RECOMPUTING = "resnet18, pieces run again in backward"
STEPS, QUICK_STEPS = (1, 2, 4, 8, 16, 32), (1, 2, 4)
SHOWN = ("bptt", "sltt", "ell", "stdl")
QUICK_SHOWN = ("bptt", "stdl", "SpikingJelly BPTT", "SpikingJelly memopt, level 1, memory")
"""SpikingJelly's variants over time steps with --quick."""
PEERS = tuple(name for name, variant in jelly.VARIANTS.items() if variant.optimized in ("", "memory"))
"""SpikingJelly's variants over time steps, and on real tensors."""
LEVELS = tuple(name for name, variant in jelly.VARIANTS.items() if variant.optimized)
FORMS = {"paper": "plain", "lean": "lean"}
BATCH, SMALL_BATCH, SMALL_WIDTH = 512, 8, 0.25


def run(session: Session) -> None:
    published(session, ("cifar10",) if session.quick else tuple(PUBLISHED_GB))
    over_time(session, QUICK_STEPS if session.quick else STEPS)
    recomputing(session)
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
    found: dict[str, float] = {}
    absent = missing("spikingjelly")
    for T in steps:
        fields = {"shape": f"{BATCH}×3×32×32, T={T}", "dtype": "float32"}
        for rule in (rule for rule in SHOWN if rule in QUICK_SHOWN or not session.quick):
            for memory, form in FORMS.items():
                session.show(f"planning resnet18, {rule.upper()}, {form}, T={T}")
                who = f"{rule.upper()}, {form}"
                found[who] = planned_gb("cifar10", BATCH, rule, memory, T)
                session.record(OVER_TIME, "GB", found[who], who=who, **fields)
        for who in (who for who in PEERS if who in QUICK_SHOWN or not session.quick):
            if absent:
                session.refuse(OVER_TIME, "GB", absent, who=who, **fields)
                continue
            session.show(f"planning resnet18, {who}, T={T}")
            found[who] = fake_peak(who, T) / GB
            session.record(OVER_TIME, "GB", found[who], who=who, **fields)
        for against in (who for who in found if who in (*PEERS, "BPTT, plain")):
            goal = 10 if (against, T) == ("BPTT, plain", 4) else None
            less = found[against] / found["STDL, lean"]
            session.record(OVER_TIME, "x less", less, at_least=goal, who="STDL, lean", against=against, **fields)


def fake_peak(who: str, T: int, batch: int = BATCH, width: float = 1.0) -> int:
    """Peak bytes of one of SpikingJelly's training steps, on fake tensors."""
    with faking():
        x, y = torch.empty(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.int64)
        return jelly.peak_bytes(memopt.trainer(jelly.VARIANTS[who], width, batch, T), x, y, T)


def recomputing(session: Session, T: int = 4) -> None:
    """BPTT that recomputes pieces, with exact gradients: ours, and SpikingJelly's memory optimiser at each of its
    levels."""
    fields = {"shape": f"{BATCH}×3×32×32, T={T}", "dtype": "float32"}
    with torch.device("meta"):
        model = build_model("resnet18")
    for recompute, times in (("none", "nothing"), ("all", "every piece once"), ("twice", "every piece twice")):
        who = f"BPTT, lean, {times} again"
        session.show(f"planning {who}")
        peak = predict(RULES["bptt"], model, SGD, (BATCH, 3, 32, 32), T, recompute=recompute, steps=T).peak_bytes
        session.record(RECOMPUTING, "GB", peak / GB, who=who, **fields)
    for who in (who for who in LEVELS if "level 1" in who or not session.quick):  # higher levels search for minutes
        if absent := missing("spikingjelly"):
            session.refuse(RECOMPUTING, "GB", absent, who=who, **fields)
            continue
        session.show(f"planning {who}")
        session.record(RECOMPUTING, "GB", fake_peak(who, T) / GB, who=who, **fields)


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
    for who in PEERS:
        if absent := missing("spikingjelly"):
            session.refuse(what, "MB", absent, who=who, **fields)
            continue
        session.show(f"measuring {who}")
        trainer = memopt.trainer(jelly.VARIANTS[who], SMALL_WIDTH, SMALL_BATCH, T)
        trainer.model.to(session.device)
        measured = jelly.peak_bytes(trainer, x, y, T)
        session.record(what, "MB", measured / 1e6, who=who, **fields)
        planned = fake_peak(who, T, SMALL_BATCH, SMALL_WIDTH)
        session.record(what, "x", planned / measured, who=who, against="planned / measured", **fields)


def tables(rows: Sequence[Row]) -> list[str]:
    """The paper's and planned peaks, peaks over time steps and with pieces run again, and real tensors."""
    paper = [row for row in rows if row.unit == "GB" and row.what not in (OVER_TIME, RECOMPUTING)]
    again = [row for row in rows if row.what == RECOMPUTING]
    curve, less = ([row for row in rows if row.what == OVER_TIME and row.unit == unit] for unit in ("GB", "x less"))
    real = [row for row in rows if row.unit == "MB" or row.against == "planned / measured"]
    return [
        *under("Peak GB of the paper's networks:", pivot(paper, _network, _form, _gigabytes)),
        *under("ResNet-18 at batch 512 over time steps, GB:", pivot(curve, _who, _steps, _gigabytes)),
        *under(
            "The same, over the memory of STDL in its lean form:", pivot(less, lambda row: row.against, _steps, figure)
        ),
        *under(
            "Exact gradients with pieces run again in backward, ResNet-18 at batch 512, T=4, GB:",
            pivot(again, _who, lambda _: "peak", _gigabytes),
        ),
        *under(
            f"{real[0].what}, {real[0].shape}:" if real else "",
            pivot(real, _who, lambda row: row.against or "measured MB", lambda row: number(row.spread.p50)),
        ),
    ]


def _network(row: Row) -> str:
    return f"{row.what}, {row.shape}: {row.who.partition(', ')[0]}"


def _form(row: Row) -> str:
    form = row.who.rpartition(", ")[2]
    return "in the paper" if form == "published" else f"planned, {form}"


def _who(row: Row) -> str:
    return row.who


def _steps(row: Row) -> str:
    return row.shape.rpartition(", ")[2]


def _gigabytes(row: Row) -> str:
    return f"{row.spread.p50:.2f}"


def plot(rows: Sequence[Row]) -> bytes | None:
    """Peaks of ResNet-18 at batch 512 over the number of time steps."""
    curve = [row for row in rows if row.what == OVER_TIME and row.unit == "GB"]
    if not curve:
        return None
    order = [f"{rule.upper()}, {form}" for rule in SHOWN for form in FORMS.values()] + list(PEERS)
    panel = {"ResNet-18, batch 512": plots.lines_of(curve, lambda row: float(row.shape.rpartition("T=")[2]))}
    return plots.lines(panel, plots.Labels(x="time steps", y="peak memory, GB"), order=order)
