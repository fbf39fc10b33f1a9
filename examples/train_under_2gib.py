"""VGG-11 on images of 32 x 32 under 2 GiB: the plan at batch 768 without running it, then the same cut on digits.

python examples/train_under_2gib.py [--budget 2GiB] [--batch 768] [--steps 4] [--epochs 1]
"""

from __future__ import annotations

import argparse
import functools

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate

from stdl_engine.models import build_model
from stdl_engine.planning.budgets import format_bytes
from stdl_engine.planning.planner import predict
from stdl_engine.rules import BPTT, STDL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="2GiB", help="peak memory of a training step, including weights")
    parser.add_argument("--batch", type=int, default=768, help="images of 3 x 32 x 32 a batch")
    parser.add_argument("--steps", type=int, default=4, help="time steps")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of digits")
    args = parser.parse_args()
    torch.manual_seed(0)

    model, optimizer = build_model("vgg11"), functools.partial(torch.optim.Adam, lr=2e-3)
    sample = torch.empty(args.batch, 3, 32, 32, device="meta")  # only its shape is read
    plan = STDL(model, optimizer, sample, budget=args.budget, steps=args.steps).plan
    bptt = predict(BPTT, model, optimizer, tuple(sample.shape), args.steps, memory="paper").peak_bytes
    print(plan)
    print(f"plain BPTT would need {format_bytes(bptt)}\n")

    # The same subnetworks and auxiliary networks, an eighth as wide, on images of 16 x 16: a laptop can train them
    # without recomputing any piece.
    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    x, order = interpolate(x, scale_factor=2), torch.randperm(len(x))
    train, test = order[:1408], order[1408:]
    rule = STDL(build_model("vgg11", in_channels=1, width=0.125), optimizer, x[:64], plan=plan.recomputing({}))
    for epoch in range(1, args.epochs + 1):
        batches = train[torch.randperm(len(train))].split(64)
        losses = torch.tensor([rule.step(x[batch], y[batch], args.steps).losses for batch in batches]).mean(0)
        accuracy = (rule.predict(x[test], args.steps).argmax(1) == y[test]).float().mean().item()
        each = ", ".join(f"{loss:.3f}" for loss in losses.tolist())
        print(f"epoch {epoch}/{args.epochs}  losses of the subnetworks {each}  test {accuracy:.1%}")


if __name__ == "__main__":
    main()
