"""Stages compute what one process computes, to the last bit: weights, statistics, optimizers, losses, logits."""

from __future__ import annotations

import pytest
import torch

from stdl_engine.parallel import ParallelRule, Ranks

from ..rules.nets import batches, make, sgd, small
from .processes import run

CASES = {
    "stdl, lean, images": ("stdl", "resnet18", 0, {}),
    "stdl, lean, sequences": ("stdl", "resnet18", 3, {}),
    "stdl, recomputing, sequences": ("stdl", "resnet18", 3, {"recompute": "all"}),
    "stdl, chunks, images": ("stdl", "resnet18", 0, {"chunk": 2}),
    "stdl, recomputing, chunks, sequences": ("stdl", "resnet18", 3, {"recompute": "all", "chunk": 2}),
    "stdl, plain, images": ("stdl", "resnet18", 0, {"memory": "paper"}),
    "ell, pooled maps": ("ell", "vgg11", 0, {}),
    "decolle, sums of spikes": ("decolle", "sew_resnet34", 2, {}),
    "even, bfloat16": ("even", "resnet18", 0, {"precision": "bf16", "K": 4}),
}
BATCHES, T = 3, 2


def schedule(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=BATCHES)


def build(name: str, model: str, frames: int, options: dict):
    network = small(model).to(memory_format=torch.channels_last)
    data = batches(BATCHES + 1, model, frames=frames)
    sample = data[0][0] if not frames else data[0][0][0]
    return make(name, network, sample, sgd, schedule=schedule, **options), data


def steps(frames: int) -> int:
    return frames or T


def alone(case: str) -> dict:
    """What one process makes of a case."""
    rule, data = build(*CASES[case])
    *training, (x, _) = data
    results = []
    for images, labels in training:
        results.append(rule.step(images, labels, steps(CASES[case][2])))
        rule.advance_schedule()
    return {
        "losses": [torch.stack(result.losses) for result in results],
        "logits": [result.logits for result in results],
        "predicted": rule.predict(x, steps(CASES[case][2])),
        "state": rule.state_dict(),
    }


def on_stages(stages: int, cases: list[str]) -> dict:
    """What this rank has of the cases."""
    found = {}
    ranks = Ranks(stages)
    for case in cases:
        built, data = build(*CASES[case])
        rule, T = ParallelRule(built, ranks), steps(CASES[case][2])
        results = []
        for x, y in data[:-1]:
            results.append(rule.step(x, y, T) if ranks.is_first else rule.step(None, None, T))
            rule.advance_schedule()
        predicted = rule.predict(data[-1][0] if ranks.is_first else None, T)
        held = sum(p.numel() for p in built.model.parameters())
        found[case] = {"state": rule.state_dict(), "held": held, "traffic": rule.traffic, "runs": rule.runs}
        if ranks.is_last:
            found[case] |= {
                "losses": [torch.stack(result.losses) for result in results],
                "logits": [result.logits for result in results],
                "labels": [result.labels for result in results],
                "predicted": predicted[0],
            }
        rule.close()
    ranks.close()
    return found


@pytest.mark.parametrize(("stages", "cases"), [
    (2, list(CASES)),
    (3, [case for case in CASES if "plain" not in case]),
    (4, ["ell, pooled maps", "decolle, sums of spikes", "even, bfloat16"]),
])  # fmt: skip
def test_stages_equal_one_process(stages, cases):
    by_rank = run(stages, on_stages, stages, cases)
    for case in cases:
        expected, last = alone(case), by_rank[0][case]
        for kind in ("losses", "logits"):
            assert all(map(torch.equal, last[kind], expected[kind])), (case, kind)
        assert torch.equal(last["predicted"], expected["predicted"]), case
        assert_same_state(last["state"], expected["state"])
        whole = sum(p.numel() for p in build(*CASES[case])[0].model.parameters())
        assert sum(rank[case]["held"] for rank in by_rank) == whole  # each weight on one rank
        assert all(rank[case]["state"] is None for rank in by_rank[1:])


def assert_same_state(one, other, place="state"):
    """Nested states with the same keys and tensors, bit for bit."""
    assert type(one) is type(other) or (isinstance(one, dict) and isinstance(other, dict)), place
    if isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key in one:
            assert_same_state(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), place
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same_state(a, b, f"{place}[{number}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), place
    else:
        assert one == other, place
