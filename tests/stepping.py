"""Going through time, for tests of neurons and of the kernels below them."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def there_and_back(
    step: Callable[[Tensor], Tensor], xs: Iterable[Tensor], upstream: Iterable[Tensor], at_once: bool
) -> list[Tensor]:
    """The output of every time step; backward runs after each of them if `at_once`, else after the last."""
    outputs, upstream = [], list(upstream)
    for x, grad in zip(xs, upstream, strict=True):
        outputs.append(step(x))
        if at_once:
            outputs[-1].backward(grad)
    if not at_once:
        torch.autograd.backward(outputs, upstream)
    return outputs
