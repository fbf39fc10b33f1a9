"""Time that the engine adds to a training step, and a lean step's time relative to a plain one's.

ResNet-18 at a quarter of its width, 32×32 images, T=4, SGD with momentum, the paper's partition. The engine's own
overhead is found by comparing `rule.step` with a loop written out by hand over the same subnetworks. Lean and paper
memory are compared by two rules on two copies of one model, which end with the same weights. All cases are interleaved.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from stdl_engine import reset_states
from stdl_engine.models import build_model
from stdl_engine.neurons import Neuron
from stdl_engine.rules import BPTT, SLTT, STDL, Rule

from .session import Session
from .timing import Case, ratios
from .workload import SGD, batch_of

BATCH, QUICK_BATCH, T = 64, 32, 4
RULES = {"STDL": (STDL, {"budget": "published"}), "SLTT": (SLTT, {}), "BPTT": (BPTT, {})}


def run(session: Session) -> None:
    x, y = batch_of(QUICK_BATCH if session.quick else BATCH, session.device)
    overhead(session, x, y)
    lean_against_paper(session, x, y)


def overhead(session: Session, x: torch.Tensor, y: torch.Tensor) -> None:
    """rule.step compared with the loop by hand, both in the plain form and in the same order."""
    fields = {"shape": f"width 0.25, batch {len(x)}, T={T}", "dtype": "float32"}
    for name in ("STDL",) if session.quick else ("STDL", "SLTT"):
        engine, hand = build(name, x, memory="paper", order="subnetwork"), for_a_loop_by_hand(name, x)
        cases = {"engine": Case(lambda e=engine: e.step(x, y, T)), "by hand": Case(lambda h=hand: train(h, x, y))}
        times = session.time(f"overhead of {name}", cases, warmup=1)
        session.record("engine overhead", "ms", [t * 1e3 for t in times["by hand"]], who=f"{name}, by hand", **fields)
        extra = [100 * (ratio - 1) for ratio in ratios(times["engine"], times["by hand"])]
        session.record("engine overhead", "%", extra, at_most=3, who=name, against="by hand", **fields)


def lean_against_paper(session: Session, x: torch.Tensor, y: torch.Tensor) -> None:
    """The time of a lean step relative to a plain one."""
    fields = {"shape": f"width 0.25, batch {len(x)}, T={T}", "dtype": "float32"}
    for name in ("STDL",) if session.quick else RULES:
        rules = {memory: build(name, x, memory=memory) for memory in ("paper", "lean")}
        cases = {memory: Case(lambda rule=rule: rule.step(x, y, T)) for memory, rule in rules.items()}
        times = session.time(f"{name}, lean against paper", cases, warmup=1)
        for memory in rules:
            milliseconds = [t * 1e3 for t in times[memory]]
            session.record("lean / paper", "ms", milliseconds, who=f"{name}, {memory}", **fields)
        ratio = ratios(times["lean"], times["paper"])
        session.record("lean / paper", "x", ratio, at_most=1.1, who=name, against="paper", **fields)


def build(name: str, x: torch.Tensor, **options) -> Rule:
    """A rule on a new model, always with the same weights."""
    torch.manual_seed(1)
    kind, extra = RULES[name]
    return kind(build_model("resnet18", width=0.25).to(x.device), SGD, x, **extra, **options)


def for_a_loop_by_hand(name: str, x: torch.Tensor) -> Rule:
    """The same with its neurons permanently online: a rule sets that only during its own steps."""
    rule = build(name, x, memory="paper")
    for module in rule.modules():
        if isinstance(module, Neuron):
            module.online = True
    return rule


def train(rule: Rule, x: torch.Tensor, y: torch.Tensor) -> None:
    """What `rule.step` computes, and nothing else."""
    frames = [x] * T
    for subnetwork, optimizer in zip(rule.subnetworks, rule.optimizers, strict=True):
        outputs = []
        for frame in frames:
            output = subnetwork.units(frame)
            loss = cross_entropy(subnetwork.classifier(output), y) / T
            loss.backward()
            outputs.append(output.detach())
        optimizer.step()
        optimizer.zero_grad()
        reset_states(subnetwork)
        frames = outputs
