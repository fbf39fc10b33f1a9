"""One training step of one stage: what a rank runs, and, on fake tensors, what is measured beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..memory.spikes import Kept
from ..planning.subnetworks import Subnetwork
from ..rules import Rule
from .links import Message
from .wire import Wire, encode


def train_stage(
    rule: Rule, parts: Sequence[Subnetwork], frames: Iterable[Kept], y: Tensor, T: int
) -> tuple[list[Wire], list[Tensor], Tensor | None]:
    """Train consecutive subnetworks. Returns the output of the last of them as it is sent, chunk by chunk, nothing for
    the network's last one; their losses; and the network's logits if its last subnetwork is among them."""
    wires: list[Wire] = []

    def learn(subnetwork: Subnetwork, t: int, frame: Kept) -> Kept:
        output = rule.learn(subnetwork, t, frame)
        if subnetwork is parts[-1] and not subnetwork.is_last:
            wires.append(encode(output))
        return output

    losses, logits = rule.train_on(parts, frames, y, T, learn)
    return wires, losses, logits


def with_labels(y: Tensor, maps: Sequence[Wire], losses: Sequence[Tensor] | None = None) -> list[Wire]:
    """All that is sent of a batch: labels, the losses of the subnetworks so far if there are any, and maps."""
    extra = [] if losses is None else [encode(torch.stack([loss.cpu() for loss in losses]))]
    return [encode(y), *extra, *maps]


def training_message(y: Tensor, maps: Sequence[Wire], losses: Sequence[Tensor], T: int) -> Message:
    """What the next stage learns from."""
    return Message("train", with_labels(y, maps, losses), {"T": T})
