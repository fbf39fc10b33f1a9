"""Models that others wrote: what converting them changes (nothing), and which learning rules train them.

`python -m tests.convert.zoo` tries all of them and prints the table of docs/convert.md; names after it try these alone.
SpikingJelly's residual networks of more than 50 layers are left out: they repeat the blocks of the shorter ones. Models
of Norse and sinabs are in the table where these libraries are installed (`pip install 'stdl-engine[bench]'`).
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from spikingjelly.activation_based import functional, layer, neuron
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stdl_engine.convert import convert_neurons, units_from
from stdl_engine.planning.planner import predict
from stdl_engine.rules import BPTT, DECOLLE, ELL, SLTT, STDL, Rule

from .nets import lively

STEPS, BATCH = 4, 2
sgd = functools.partial(torch.optim.SGD, lr=0.1)
MODELS = "spikingjelly.activation_based.model"


@dataclass(frozen=True)
class Entry:
    """A model of another library."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (3, 32, 32)
    """Of one frame."""
    modes: tuple[str, ...] = ("s", "m")
    """Step modes its forward can take: some take whole sequences only, "m", some make the sequence themselves, ""."""
    dtype: torch.dtype = torch.float64
    """In which it is compared with itself converted."""
    budget: float = 0.6
    """Of STDL; a network of few units needs a larger one to be cut at all."""


def made(module: str, name: str, *args, **options) -> Callable[[], nn.Module]:
    """One of SpikingJelly's builders with `LIFNode`, found when it is called."""

    def make() -> nn.Module:
        builder = getattr(importlib.import_module(f"{MODELS}.{module}"), name)
        return builder(*args, **{"spiking_neuron": neuron.LIFNode} | options)

    return make


def vgg(name: str) -> nn.Module:
    """With a narrow classifier, as SpikingJelly's own has 120 million weights, and with weights large enough for
    layers without a norm to fire."""
    with torch.device("meta"):
        model = made("spiking_vgg", name)()
    features = model.features.to_empty(device="cpu")
    for module in features.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=5 * (9 * module.in_channels) ** -0.5)
    model.avgpool = layer.AdaptiveAvgPool2d((1, 1))
    for place, (inputs, outputs) in {0: (512, 48), 3: (48, 48), 6: (48, 10)}.items():
        model.classifier[place] = layer.Linear(inputs, outputs)
        nn.init.normal_(model.classifier[place].weight, std=0.6)
    return model


def parametric_lif_net(name: str) -> nn.Module:
    """With large weights in its linear layers, so that the last neurons fire."""
    model = made("parametric_lif_net", name, 8, spiking_neuron=neuron.ParametricLIFNode)()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=4 * module.in_features**-0.5)
    return model


def snas_net(cells: str) -> nn.Module:
    """Two cells with every operation in them, forward and backward connections."""
    from spikingjelly.activation_based.model.snas_net import SNASNet

    args = types.SimpleNamespace(
        timestep=STEPS, second_avgpooling=2, dataset="cifar10", celltype=cells, threshold=1.0, tau=4 / 3
    )
    return SNASNet(args, np.array([[0, 2, 4, 3], [2, 0, 3, 1], [1, 4, 0, 2], [0, 1, 3, 0]]))


def snntorch_net() -> nn.Module:
    """snnTorch ships no models; this is the convolutional network of its tutorials."""
    from snntorch import Leaky

    lif = functools.partial(Leaky, beta=0.9, init_hidden=True)
    return nn.Sequential(
        nn.Conv2d(1, 12, 5), nn.MaxPool2d(2), lif(), nn.Conv2d(12, 64, 5), nn.MaxPool2d(2), lif(),
        nn.Flatten(), nn.Linear(64 * 4 * 4, 10), lif(),
    )  # fmt: skip


def norse_net(name: str, *args) -> nn.Module:
    return getattr(importlib.import_module("norse.torch.models.conv"), name)(*args)


def sinabs_net() -> nn.Module:
    """What sinabs makes of a convolutional network with ReLU."""
    from_torch = importlib.import_module("sinabs.from_torch")
    relu = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 13 * 13, 10))
    return from_torch.from_model(relu, input_shape=(1, 28, 28), batch_size=BATCH).spiking_model


RESNETS = ("resnet18", "resnet34", "resnet50", "resnext50_32x4d", "wide_resnet50_2")
FRAMES = {
    "MNISTNet": (1, 28, 28), "FashionMNISTNet": (1, 28, 28), "NMNISTNet": (2, 34, 34), "CIFAR10Net": (3, 32, 32),
    "CIFAR10DVSNet": (2, 128, 128), "DVSGestureNet": (2, 128, 128),
}  # fmt: skip
OWN_NEURON = {"spiking_neuron": None, "num_classes": 10}


def entries() -> Iterator[tuple[str, Entry]]:
    for name in RESNETS:
        yield f"sew_{name}", Entry(made("sew_resnet", f"sew_{name}", cnf="ADD", num_classes=10))
    for cnf in ("AND", "IAND"):
        yield f"sew_resnet18 {cnf}", Entry(made("sew_resnet", "sew_resnet18", cnf=cnf, num_classes=10))
    for name in RESNETS:
        yield f"spiking_{name}", Entry(made("spiking_resnet", f"spiking_{name}", num_classes=10))
    for name in (f"spiking_vgg{depth}{norm}" for depth in (11, 13, 16, 19) for norm in ("", "_bn")):
        yield name, Entry(functools.partial(vgg, name))
    for name, shape in FRAMES.items():
        yield name, Entry(functools.partial(parametric_lif_net, name), shape, budget=0.8)
    sequences = {
        "ms_resnet18": made("ms_resnet", "ms_resnet18", STEPS, num_classes=10),
        "ms_resnet34": made("ms_resnet", "ms_resnet34", STEPS, num_classes=10),
        "max_resnet18": made("ms_resnet", "max_resnet18", STEPS),
        "att_ms_resnet18": made("masnn", "att_ms_resnet18", STEPS, **OWN_NEURON),
        "spikformer_ti": made("spikformer", "spikformer_ti", STEPS, 3, 32, 32, 10),
        "spikformer_s": made("spikformer", "spikformer_s", STEPS, 3, 32, 32, 10),
        "spikformer_cifar10": made("spikformer", "spikformer_cifar10", STEPS),
        "qkformer_10_384": made("qkformer", "qkformer_10_384", STEPS, num_classes=10),
        "sdt_8_384": made("spike_driven_transformer", "sdt_8_384", STEPS, num_classes=10),
        "maxformer_10_384": made("maxformer", "maxformer_10_384", STEPS, num_classes=10),
        "maxformer_cifar": made("maxformer", "maxformer_cifar", STEPS, num_classes=10),
    }
    for name, make in sequences.items():
        yield name, Entry(make, modes=("m",))
    for cells in ("forward", "backward"):
        yield f"SNASNet {cells}", Entry(functools.partial(snas_net, cells), modes=("",))
    ottt = made("spiking_vggws_ottt", "ottt_spiking_vggws", spiking_neuron=neuron.OTTTLIFNode, num_classes=10)
    yield "ottt_spiking_vggws", Entry(ottt, modes=())
    yield "snnTorch, convolutional", Entry(snntorch_net, (1, 28, 28), ("s",), torch.float32)  # its spikes are float32
    if importlib.util.find_spec("norse"):
        yield "Norse ConvNet", Entry(functools.partial(norse_net, "ConvNet"), (1, 28, 28), ())
        yield "Norse ConvNet4", Entry(functools.partial(norse_net, "ConvNet4"), (1, 28, 28), ())
    if importlib.util.find_spec("sinabs"):
        yield "sinabs from_model", Entry(sinabs_net, (1, 28, 28), ())


ZOO = dict(entries())
"""All models, by the name of their builder."""


def same_after_converting(entry: Entry) -> tuple[int, int, float]:
    """How many neurons a model has, how many of them are fused after converting, and the largest difference of its
    outputs and of every parameter's gradient, in each step mode."""
    model = fresh(entry).to(entry.dtype)
    converted = copy.deepcopy(model)
    report = convert_neurons(converted)
    x = torch.randn(STEPS, BATCH, *entry.shape).to(entry.dtype)
    worst = 0.0
    for mode in entry.modes:
        expected, found = passes(model, x, mode), passes(converted, x, mode)
        assert expected.keys() == found.keys()
        assert expected["output"].std() > 0
        worst = max(worst, largest_difference(expected, found))
    return len(report.swapped) + len(report.left), len(report.swapped), worst


def passes(model: nn.Module, x: Tensor, mode: str) -> dict[str, Tensor]:
    """The output of a sequence and the gradient of every parameter, by a random gradient of the output."""
    functional.reset_net(model)
    model.zero_grad()
    if mode:
        functional.set_step_mode(model, mode)
    torch.manual_seed(5)  # for dropout
    output = torch.stack([model(frame) for frame in x]) if mode == "s" else model(x if mode == "m" else x[0])
    torch.manual_seed(6)
    output.backward(torch.randn_like(output))
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"output": output.detach()} | gradients


def largest_difference(expected: dict[str, Tensor], found: dict[str, Tensor]) -> float:
    """The largest difference of two tensors of one name, relative to the largest number in them.

    A tensor that is less than 1e-9 of the largest one is a rounded zero, for example the gradient of a bias before
    batch norm. Its difference is relative to the largest of all.
    """
    sizes = {name: value.abs().max().item() for name, value in expected.items()}
    largest = max(sizes.values())
    scales = {name: size if size > 1e-9 * largest else largest for name, size in sizes.items()}
    return max((found[name] - value).abs().max().item() / scales[name] for name, value in expected.items())


def same_under_bptt(entry: Entry) -> float:
    """The largest difference between a step of `BPTT` on the units and a loop over the model as it came."""
    plain = fresh(entry).double()
    model = copy.deepcopy(plain)
    x, y = torch.randn(BATCH, *entry.shape).double(), torch.randint(10, (BATCH,))
    before = {name: p.detach().clone() for name, p in plain.named_parameters()}
    rule = BPTT(units_from(model), sgd, x)
    torch.manual_seed(4)
    rule.step(x, y, STEPS)
    torch.manual_seed(4)
    optimizer = sgd(plain.parameters())
    sum(cross_entropy(plain(x), y) / STEPS for _ in range(STEPS)).backward()
    optimizer.step()
    steps = {name: p.detach() - before[name] for name, p in plain.named_parameters()}
    return largest_difference(steps, {name: p.detach() - before[name] for name, p in model.named_parameters()})


def trains(entry: Entry) -> list[str]:
    """The rules that train the units of a model: finite losses, and most weights moved."""
    x, y = torch.randn(BATCH, *entry.shape), torch.randint(10, (BATCH,))
    done = []
    for name, rule in rules(entry, x).items():
        model = fresh(entry)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        losses = rule(units_from(model)).step(x, y, STEPS).losses
        assert all(loss.isfinite() for loss in losses), name
        moved = sum(not torch.equal(before[key], value) for key, value in model.state_dict().items())
        assert moved >= 0.7 * len(before), (name, moved, len(before))
        done.append(name)
    return done


def rules(entry: Entry, x: Tensor) -> dict[str, Callable[[nn.Sequential], Rule]]:
    """The learning rules besides BPTT; the budget in bytes is what the budget of a fraction comes to."""
    bytes_ = predict(STDL, units_from(fresh(entry)), sgd, x, STEPS, budget=entry.budget).peak_bytes
    options = {"optimizer": sgd, "sample": x}
    return {
        "SLTT": functools.partial(SLTT, **options),
        "ELL": functools.partial(ELL, **options),
        "DECOLLE": functools.partial(DECOLLE, **options),
        f"STDL({entry.budget})": functools.partial(STDL, budget=entry.budget, **options),
        "STDL(bytes)": functools.partial(STDL, budget=bytes_, steps=STEPS, **options),
    }


def fresh(entry: Entry) -> nn.Module:
    torch.manual_seed(1)
    return lively(entry.make())


def row(entry: Entry) -> str:
    """What is known about a model, as the end of a line of the table."""
    neurons, fused, difference = same_after_converting(entry)
    cells = [f"{fused} of {neurons}", f"{difference:.0e}" if entry.modes else "-"]
    try:
        units = units_from(fresh(entry))
    except ValueError as error:
        return " | ".join([*cells, "-", "-", str(error).partition(": ")[2].partition(";")[0]])
    cells += [f"{len(units) - 1}", f"{same_under_bptt(entry):.0e}"]
    return " | ".join([*cells, ", ".join(trains(entry))])


def main(names: list[str]) -> None:
    print("| model | neurons fused | difference | units | BPTT's difference | other rules, or why there are no units |")
    print("|---|---|---|---|---|---|")
    for name in names or ZOO:
        print(f"| {name} | {row(ZOO[name])} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
