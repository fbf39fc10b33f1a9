"""The networks: units, shapes and sizes as published, and every argument of `build_model`."""

import pytest
import torch
from torch import nn

from stdl_engine import ATan, FusedLIF
from stdl_engine.models import MODELS, build_model
from stdl_engine.neurons import Neuron
from stdl_engine.units import Head, label_of, output_shape, shapes_only

LABELS = {
    "resnet18": "64C3 64R 64R 128R(s2) 128R 256R(s2) 256R 512R(s2) 512R 10FC",
    "resnet18_pooled": "64C3-AP(k2s2) 64R 64R 128R(s2) 128R 256R(s2) 256R 512R(s2) 512R 10FC",
    "resnet19": "128C3 128R 128R 128R 256R(s2) 256R 256R 512R(s2) 512R 10FC",
    "vgg16": "64C3 64C3-AP(k2s2) 128C3 128C3-AP(k2s2) 256C3 256C3 256C3-AP(k2s2) 512C3 512C3 512C3-AP(k2s2) "
    "512C3 512C3 512C3 10FC",
    "vgg11": "64C3 128C3-AP(k2s2) 256C3 256C3-AP(k2s2) 512C3 512C3-AP(k2s2) 512C3 512C3-AP(k2s2) 10FC",
    "sew_resnet34": "64C3-AP(k3s2p1) 64SEWR 64SEWR 64SEWR 128SEWR(s2) 128SEWR 128SEWR 128SEWR "
    "256SEWR(s2) 256SEWR 256SEWR 256SEWR 256SEWR 256SEWR 512SEWR(s2) 512SEWR 512SEWR 10FC",
}
NEURON_LAYERS = {
    "resnet18": 17,
    "resnet18_pooled": 17,
    "resnet19": 17,
    "vgg16": 13,
    "vgg11": 8,
    "sew_resnet34": 1 + 2 * 16 + 3,
}

every_model = pytest.mark.parametrize("name", MODELS)


def shapes(model: nn.Sequential, *in_shape: int) -> list[tuple[int, ...]]:
    """Shape after every unit of a model on the meta device."""
    found = [in_shape]
    for unit in model:
        found.append(output_shape(unit, found[-1]))
    return found[1:]


def on_meta(name: str, **options) -> nn.Sequential:
    with shapes_only():
        return build_model(name, **options)


def test_labels_cover_every_model():
    assert set(LABELS) == set(MODELS)


@every_model
def test_units_in_the_papers_notation(name):
    assert [label_of(unit) for unit in on_meta(name)] == LABELS[name].split()


@pytest.mark.parametrize("size", [32, 128, 224])
@pytest.mark.parametrize("name", ["resnet18", "resnet19"])
def test_resnet_halves_at_every_stage_but_the_first(name, size):
    stages = {
        "resnet18": [(64, size, 3), (128, size // 2, 2), (256, size // 4, 2), (512, size // 8, 2)],
        "resnet19": [(128, size, 4), (256, size // 2, 3), (512, size // 4, 2)],
    }[name]
    expected = [(channels, side, side) for channels, side, count in stages for _ in range(count)]
    assert shapes(on_meta(name), 3, size, size) == [*expected, (10,)]


def test_pooled_resnet_is_half_the_size_throughout():
    whole, pooled = (shapes(on_meta(name), 3, 224, 224) for name in ("resnet18", "resnet18_pooled"))
    assert pooled[:-1] == [(channels, side // 2, side // 2) for channels, side, _ in whole[:-1]]


@pytest.mark.parametrize("size", [32, 128])
def test_vgg_halves_at_every_pool(size):
    def squares(*rows):
        return [(channels, size // by, size // by) for channels, by in rows]

    vgg16 = squares(
        (64, 1), (64, 2), (128, 2), (128, 4), (256, 4), (256, 4), (256, 8), (512, 8), (512, 8), (512, 16),
        (512, 16), (512, 16), (512, 16),
    )  # fmt: skip
    vgg11 = squares((64, 1), (128, 2), (256, 2), (256, 4), (512, 4), (512, 8), (512, 8), (512, 16))
    assert shapes(on_meta("vgg16"), 3, size, size) == [*vgg16, (10,)]
    assert shapes(on_meta("vgg11", in_channels=2), 2, size, size) == [*vgg11, (10,)]


def test_sew_resnet_stages_at_224():
    found = shapes(on_meta("sew_resnet34", num_classes=1000), 3, 224, 224)
    stages = [(64, 112, 4), (128, 56, 4), (256, 28, 6), (512, 14, 3)]
    assert found == [(c, side, side) for c, side, count in stages for _ in range(count)] + [(1000,)]


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [
        ("resnet18", 10, 11_173_962),  # the common CIFAR ResNet-18
        ("vgg16", 10, 14_728_266 - 4_224),  # the common CIFAR VGG16 without the biases of its convs
        ("sew_resnet34", 1000, 21_797_672 - 64 * 3 * 49 + 64 * 3 * 9),  # torchvision's ResNet-34 with a 3×3 stem
    ],
)
def test_parameters_are_those_of_the_known_networks(name, classes, count):
    assert sum(p.numel() for p in on_meta(name, num_classes=classes).parameters()) == count


@every_model
def test_every_model_runs_small(name):
    model = build_model(name, width=0.0625, in_channels=2, num_classes=7)
    assert model(torch.randn(2, 2, 16, 16)).shape == (2, 7)


@every_model
def test_width_multiplies_every_channel_count(name):
    whole, half, tiny = on_meta(name), on_meta(name, width=0.5), on_meta(name, width=0.001)
    assert [unit.out_channels for unit in half[:-1]] == [unit.out_channels // 2 for unit in whole[:-1]]
    assert {unit.out_channels for unit in tiny[:-1]} == {1}
    assert [unit.stride for unit in half[:-1]] == [unit.stride for unit in whole[:-1]]
    assert half[0].in_channels == 3  # the input is no layer
    for model in (whole, half, tiny):
        assert [unit.in_channels for unit in model[1:-1]] == [unit.out_channels for unit in model[:-2]]
        assert model[-1].linear.in_features == model[-2].out_channels


def test_width_rounds_to_the_nearest_channel():
    assert on_meta("resnet18", width=0.1)[0].out_channels == 6


@every_model
def test_in_channels_and_num_classes(name):
    model = on_meta(name, in_channels=2, num_classes=101)
    assert model[0].in_channels == model[0].conv.in_channels == 2
    assert isinstance(model[-1], Head)
    assert model[-1].num_classes == model[-1].linear.out_features == 101
    assert label_of(model[-1]) == "101FC"


@every_model
def test_neuron_arguments_reach_every_neuron_layer(name):
    model = on_meta(name, decay=0.25, threshold=0.7, reset="hard", surrogate=ATan(3.0), detach_reset=True)
    neurons = [module for module in model.modules() if isinstance(module, Neuron)]
    assert len(neurons) == NEURON_LAYERS[name]
    for neuron in neurons:
        assert type(neuron) is FusedLIF
        assert (neuron.decay, neuron.threshold, neuron.reset_mode) == (0.25, 0.7, "hard")
        assert (neuron.surrogate, neuron.detach_reset) == (ATan(3.0), True)


@every_model
def test_neuron_class_makes_every_neuron_layer(name):
    class Noted(FusedLIF):
        def __init__(self, note, **options):
            super().__init__(**options)
            self.note = note

    model = on_meta(name, neuron=Noted, note="here", decay=0.3)
    neurons = [module for module in model.modules() if isinstance(module, Neuron)]
    assert [(type(neuron), neuron.note, neuron.decay) for neuron in neurons] == [
        (Noted, "here", 0.3) for _ in range(NEURON_LAYERS[name])
    ]


@every_model
def test_model_says_which_it_is(name):
    assert on_meta(name, width=0.25).architecture == name


def test_unknown_model():
    with pytest.raises(ValueError, match=r"unknown model 'resnet20': choose from resnet18, .*sew_resnet34\.$"):
        build_model("resnet20")


@pytest.mark.parametrize("width", [0, -0.5, float("nan")])
def test_width_must_be_positive(width):
    with pytest.raises(ValueError, match=r"^width is .*: it must be positive, for example 0\.25\.$"):
        build_model("resnet18", width=width)


def test_unknown_neuron_argument():
    with pytest.raises(TypeError, match="leak"):
        build_model("resnet18", leak=0.1)
