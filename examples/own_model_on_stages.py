"""Your own network with its subnetworks on several processes: nothing is sent back, and no weights are stale.

torchrun --nproc-per-node 2 examples/own_model_on_stages.py
"""

import functools
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import interpolate

from stdl_engine import ELL
from stdl_engine.parallel import ParallelRule, Ranks
from stdl_engine.units import ConvUnit, Head, ResidualBlock

T, BATCH, EPOCHS = 4, 64, 2

digits = load_digits()
images = interpolate(torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, scale_factor=2)
labels = torch.tensor(digits.target)
train, test = range(1408), slice(1408, None)

torch.manual_seed(0)  # every process builds the same network, and keeps its own part of it
model = nn.Sequential(ConvUnit(1, 16), ResidualBlock(16, 32, stride=2), ResidualBlock(32, 64, stride=2), Head(64, 10))
optimizer = functools.partial(torch.optim.Adam, lr=2e-3)
with Ranks(stages=int(os.environ.get("WORLD_SIZE", 1))) as ranks:
    rule = ParallelRule(ELL(model, optimizer, images[:BATCH]), ranks)
    for epoch in range(1, EPOCHS + 1):
        for first in range(0, len(train), BATCH):
            batch = slice(first, first + BATCH)
            # The first stage is given the batch, and the last one returns the result; the others get neither.
            result = rule.step(images[batch], labels[batch], T) if ranks.is_first else rule.step(None, None, T)
        seen = rule.predict(images[test] if ranks.is_first else None, T, labels[test] if ranks.is_first else None)
        if ranks.is_last:
            logits, wanted = seen
            accuracy = (logits.argmax(1) == wanted).float().mean().item()
            print(f"epoch {epoch}/{EPOCHS}  {ranks.stages} stages  loss {result.loss:.3f}  test {accuracy:.1%}")
    state = rule.state_dict()  # on the last stage the state of the whole rule, the same as from one process
    rule.close()
