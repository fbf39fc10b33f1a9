"""SpikingJelly's own models, small enough for tests, and how two models are compared."""

import torch
from spikingjelly.activation_based import functional, layer, neuron
from spikingjelly.activation_based.model import sew_resnet, spiking_resnet
from spikingjelly.activation_based.model.spiking_vgg import SpikingVGG
from torch import Tensor, nn


def sew_resnet18(cnf="ADD", **options) -> nn.Module:
    return _sew(sew_resnet.BasicBlock, [2, 2, 2, 2], cnf, options)


def spiking_resnet18(**options) -> nn.Module:
    return _spiking(spiking_resnet.BasicBlock, [2, 2, 2, 2], options)


def sew_bottlenecks(cnf="ADD", **options) -> nn.Module:
    """The blocks of `sew_resnet50`, one of each kind."""
    return _sew(sew_resnet.Bottleneck, [1, 1, 1, 1], cnf, options)


def spiking_bottlenecks(**options) -> nn.Module:
    return _spiking(spiking_resnet.Bottleneck, [1, 1, 1, 1], options)


def _sew(block: type, blocks: list[int], cnf: str, options: dict) -> nn.Module:
    return lively(sew_resnet.SEWResNet(block, blocks, num_classes=10, cnf=cnf, **with_neuron(options)))


def _spiking(block: type, blocks: list[int], options: dict) -> nn.Module:
    return lively(spiking_resnet.SpikingResNet(block, blocks, num_classes=10, **with_neuron(options)))


def spiking_vgg11_bn(**options) -> nn.Module:
    """`spiking_vgg11_bn` with an eighth of its channels: its own classifier alone has 120 million weights."""
    options = with_neuron(options)
    with torch.device("meta"):
        model = SpikingVGG([8], batch_norm=True, init_weights=False, **options)
    plan = [8, "M", 16, "M", 32, 32, "M", 64, 64, "M", 64, 64, "M"]
    model.features = SpikingVGG.make_layers(plan, batch_norm=True, neuron=options.pop("spiking_neuron"), **options)
    model.avgpool = layer.AdaptiveAvgPool2d((1, 1))
    for place, (inputs, outputs) in {0: (64, 48), 3: (48, 48), 6: (48, 10)}.items():
        model.classifier[place] = layer.Linear(inputs, outputs)
        nn.init.normal_(model.classifier[place].weight, std=0.6)
    return lively(model)


MODELS = {"sew_resnet18": sew_resnet18, "spiking_resnet18": spiking_resnet18, "spiking_vgg11_bn": spiking_vgg11_bn}


def with_neuron(options: dict) -> dict:
    return {"spiking_neuron": neuron.LIFNode} | options


def lively(model: nn.Module) -> nn.Module:
    """The model with larger currents: as initialised, its deep layers hardly fire, and silence proves nothing."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 1.0, 2.5)
            nn.init.uniform_(module.bias, 0.0, 0.5)
    return model


def run(model: nn.Module, x: Tensor, mode: str, grad: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs [T, ...] of a sequence and the gradients of all parameters, given that of the outputs."""
    functional.set_step_mode(model, mode)
    functional.reset_net(model)
    model.zero_grad()
    torch.manual_seed(5)  # for dropout
    outputs = model(x) if mode == "m" else torch.stack([model(frame) for frame in x])
    outputs.backward(grad)
    return outputs.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}
