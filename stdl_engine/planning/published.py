"""The four published configurations of the method, by architecture: runs of units, and which later units make each
auxiliary network.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

Rows = Sequence[tuple[range, Sequence[int] | None]]

PUBLISHED: dict[str, Rows] = {
    "resnet18": ((range(0, 2), (5, 7, 8)), (range(2, 4), (5, 7)), (range(4, 9), None)),
    "resnet19": ((range(0, 2), (4, 7)), (range(2, 4), (7,)), (range(4, 9), None)),
    "vgg16": ((range(0, 1), (10,)), (range(1, 3), (10,)), (range(3, 13), None)),
    "sew_resnet34": ((range(0, 4), (14, 15, 16)), (range(4, 17), None)),
}


PUBLISHED["resnet18_pooled"] = PUBLISHED["resnet18"]  # the same configuration was used on event frames


def published_rows(model: nn.Module) -> Rows:
    """The published row of a model made by `build_model`."""
    architecture = getattr(model, "architecture", None)
    if architecture not in PUBLISHED:
        raise ValueError(
            f'budget "published" exists for {", ".join(PUBLISHED)}, this model is {architecture or "none of them"}: '
            'pass a fraction such as 0.5, or bytes such as "2GiB".'
        )
    return PUBLISHED[architecture]
