"""Your own block as a unit: cut by the budget, rebuilt in auxiliary networks, trained on scikit-learn's digits.

python examples/own_block.py [--epochs 3]
"""

from __future__ import annotations

import argparse
import functools

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from stdl_engine import FusedLIF
from stdl_engine.rules import STDL
from stdl_engine.units import ConvUnit, Head, Unit, after_norm, conv

T, BATCH = 4, 128
make_neuron = functools.partial(FusedLIF, decay=0.5)


class InvertedBottleneck(Unit):
    """1x1 up, depthwise 3x3, 1x1 down, each with batch norm; the input is added if its shape fits; then a neuron."""

    max_stride = 2

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, expansion: int = 2) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.stride, self.expansion = in_channels, out_channels, stride, expansion
        inside = in_channels * expansion
        self.up = nn.Sequential(conv(in_channels, inside, 1), nn.BatchNorm2d(inside), after_norm(make_neuron))
        self.depthwise = nn.Sequential(
            nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False),
            nn.BatchNorm2d(inside),
            after_norm(make_neuron),
        )
        self.down = nn.Sequential(conv(inside, out_channels, 1), nn.BatchNorm2d(out_channels))
        self.neuron = make_neuron()

    @property
    def label(self) -> str:
        return f"{self.out_channels}IB" + (f"(s{self.stride})" if self.stride > 1 else "")

    def forward(self, x: Tensor) -> Tensor:
        current = self.down(self.depthwise(self.up(x)))
        fits = self.stride == 1 and self.in_channels == self.out_channels
        return self.neuron(current + x if fits else current)

    def rebuild(self, in_channels: int, stride: int) -> InvertedBottleneck:
        """The same block for another input; auxiliary networks are made of these."""
        return InvertedBottleneck(in_channels, self.out_channels, stride, self.expansion)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x))
    train, test = order[:1408], order[1408:]
    blocks = [InvertedBottleneck(16, 32, 2), InvertedBottleneck(32, 32), InvertedBottleneck(32, 64, 2)]
    model = nn.Sequential(ConvUnit(1, 16, make_neuron), *blocks, Head(64, 10))
    rule = STDL(model, functools.partial(torch.optim.Adam, lr=2e-2), x[:BATCH], budget=0.8)
    print(rule.plan)
    for epoch in range(1, epochs + 1):
        batches = train[torch.randperm(len(train))].split(BATCH)
        loss = sum(rule.step(x[batch], y[batch], T).loss.item() for batch in batches) / len(batches)
        accuracy = (rule.predict(x[test], T).argmax(1) == y[test]).float().mean().item()
        print(f"epoch {epoch}/{epochs}  loss {loss:.3f}  test {accuracy:.1%}")


if __name__ == "__main__":
    main()
