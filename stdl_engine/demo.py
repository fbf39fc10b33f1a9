"""Train a small spiking network on scikit-learn's digits: `python -m stdl_engine.demo`, about ten seconds on two CPU
cores.
"""

from __future__ import annotations

import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from stdl_engine import FusedLIF, reset_states

EPOCHS, BATCH, T = 8, 64, 4


def build() -> nn.Sequential:
    """A small conv net whose activations are spiking neurons."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), FusedLIF(online=True),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), FusedLIF(online=True),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def train_batch(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    """One optimizer step, learning online: each time step's gradient is added as soon as the step is done."""
    reset_states(model)
    optimizer.zero_grad()
    total = 0.0
    for _ in range(T):
        loss = cross_entropy(model(x), y) / T
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


@torch.no_grad()
def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Share of images whose mean prediction over T steps is right."""
    model.eval()
    reset_states(model)
    logits = torch.stack([model(x) for _ in range(T)]).mean(0)
    model.train()
    return (logits.argmax(1) == y).float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x))
    train, test = order[:1437], order[1437:]
    model = build()
    print(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, EPOCHS + 1):
        start = time.perf_counter()
        losses = [
            train_batch(model, optimizer, x[batch], y[batch])
            for batch in train[torch.randperm(len(train))].split(BATCH)
        ]
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch}/{EPOCHS}  loss {sum(losses) / len(losses):.3f}  test {accuracy(model, x[test], y[test]):.1%}  {seconds:.1f} s"
        )


if __name__ == "__main__":
    main()
