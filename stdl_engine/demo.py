"""Train a small spiking ResNet on scikit-learn's digits by STDL: `python -m stdl_engine.demo`, under a minute on two
cores.
"""

from __future__ import annotations

import functools
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from stdl_engine.budgets import format_bytes
from stdl_engine.memory.planner import predict
from stdl_engine.models import build_model
from stdl_engine.rules import BPTT, STDL

EPOCHS, BATCH, T = 8, 64, 4


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images [N, 1, 8, 8] and labels: 1437 to train on, 360 to test."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x))
    train, test = order[:1437], order[1437:]
    return x[train], y[train], x[test], y[test]


def main() -> None:
    torch.manual_seed(0)
    x, y, x_test, y_test = load()
    model = build_model("resnet18", in_channels=1, width=0.25)
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=5e-5)
    schedule = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=EPOCHS)
    rule = STDL(model, optimizer, x[:BATCH], budget="published", schedule=schedule)
    print(rule.plan)
    ours, bptt = (
        predict(kind, model, optimizer, x[:BATCH], T, **options).peak_bytes
        for kind, options in ((STDL, {"budget": "published"}), (BPTT, {"memory": "paper"}))
    )
    print(f"peak memory of a training step: {format_bytes(ours)}, plain BPTT would need {format_bytes(bptt)}\n")
    for epoch in range(1, EPOCHS + 1):
        start = time.perf_counter()
        batches = torch.randperm(len(x)).split(BATCH)
        losses = [rule.step(x[batch], y[batch], T).loss.item() for batch in batches if len(batch) > 1]
        rule.advance_schedule()
        accuracy = (rule.predict(x_test, T).argmax(1) == y_test).float().mean().item()
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}/{EPOCHS}  loss {sum(losses) / len(losses):.3f}  test {accuracy:.1%}  {seconds:.1f} s")


if __name__ == "__main__":
    main()
