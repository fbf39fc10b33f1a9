"""A SpikingJelly model with fused neurons: same outputs, same gradients; then cut in two and trained by STDL.

python examples/convert_spikingjelly.py
"""

from __future__ import annotations

import copy
import functools

import torch
from spikingjelly.activation_based import functional, neuron, surrogate
from spikingjelly.activation_based.model.sew_resnet import sew_resnet18
from torch import Tensor, nn

from stdl_engine.convert import convert_neurons, units_from
from stdl_engine.rules import STDL

T, BATCH, CLASSES = 2, 4, 10


def run(model: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of T time steps, and the gradient of the first layer's weights."""
    functional.reset_net(model)
    model.zero_grad()
    outputs = torch.stack([model(x) for _ in range(T)])
    outputs.backward(grad)
    return outputs.detach(), model.conv1.weight.grad.clone()


def main() -> None:
    torch.manual_seed(0)
    model = sew_resnet18(
        cnf="ADD", spiking_neuron=neuron.LIFNode, surrogate_function=surrogate.ATan(), tau=1.5, num_classes=CLASSES
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, 2.0)  # as initialised, the deep layers hardly fire
    original = copy.deepcopy(model)
    report = convert_neurons(model)
    print("\n".join(str(report).splitlines()[:4]), "\n  ...\n")

    x, grad = torch.randn(BATCH, 3, 32, 32), torch.randn(T, BATCH, CLASSES)
    outputs, gradient = run(original, x, grad)
    own_outputs, own_gradient = run(model, x, grad)
    print(f"largest difference of the outputs {(outputs - own_outputs).abs().max():.1e}")
    print(f"relative difference of the first gradient {(gradient - own_gradient).norm() / gradient.norm():.1e}\n")

    functional.reset_net(model)
    optimizer = functools.partial(torch.optim.SGD, lr=0.01)
    rule = STDL(units_from(model), optimizer, x, budget=0.7)
    print(rule.plan)
    y = torch.randint(CLASSES, (BATCH,))
    losses = [rule.step(x, y, T).loss.item() for _ in range(3)]
    print("loss of three steps on one batch:", ", ".join(f"{loss:.3f}" for loss in losses))


if __name__ == "__main__":
    main()
