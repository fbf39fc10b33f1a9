"""Hooks on norms, neurons and what is around them see what they would in a plain model."""

import copy

import pytest
import torch
from torch import Tensor, nn

from stdl_engine import FusedLIF, fuse_norms

from ..test_optimize import assert_close, frames
from .blocks import Block, results_of


@pytest.mark.parametrize("which", ["norm", "neuron", "both", "global"])
@pytest.mark.parametrize("kind", ["forward", "pre", "backward"])
def test_hooks_see_what_they_would(which, kind, written):
    plain = Block(lambda: FusedLIF(step_mode="m"), "sum")
    models = [plain, copy.deepcopy(plain)]
    fuse_norms(models[1])
    x, grad, seen, results = frames(3, 2, 8, 6, 6), torch.randn(3, 2, 16, 6, 6), [], []

    def look(module, *seen_by_hook):
        if isinstance(module, nn.BatchNorm2d | FusedLIF):
            seen[-1].extend(t.detach().clone() for t in _tensors(seen_by_hook))

    for model in models:
        seen.append([])
        targets = {"norm": [model.norm2], "neuron": [model.neuron2], "both": [model.norm2, model.neuron2]}
        if which == "global":
            register = {
                "forward": nn.modules.module.register_module_forward_hook,
                "pre": nn.modules.module.register_module_forward_pre_hook,
                "backward": nn.modules.module.register_module_full_backward_hook,
            }[kind]
            handles = [register(look)]
        else:
            name = {"forward": "register_forward_hook", "pre": "register_forward_pre_hook"}
            method = name.get(kind, "register_full_backward_hook")
            handles = [getattr(module, method)(look) for module in targets[which]]
        results.append(results_of(model, x, grad, True))
        for handle in handles:
            handle.remove()
    assert_close(*results, 1e-5)
    assert seen[0]
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert len(written) == {"norm": 0, "neuron": 1, "both": 0, "global": 0}[which]


def _tensors(values) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    return [t for value in values for t in _tensors(value)] if isinstance(values, tuple) else []


def test_hooks_on_a_container():
    plain = nn.Sequential(nn.Sequential(nn.BatchNorm2d(16)), FusedLIF())
    models, seen = [plain, copy.deepcopy(plain)], []
    fuse_norms(models[1])
    x, grad, results = frames(1, 2, 16, 6, 6), torch.randn(1, 2, 16, 6, 6), []
    for model in models:
        model[0].register_forward_hook(lambda _, __, y: seen.append(y.detach().clone()))
        model[0].register_full_backward_hook(lambda _, __, grads: seen.append(grads[0].clone()))
        results.append(results_of(model, x, grad, False))
    assert_close(*results, 1e-5)
    assert len(seen) == 4
    for one, other in zip(seen[:2], seen[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
