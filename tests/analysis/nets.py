"""A network and settings that train in a moment."""

from torch import nn

from stdl_engine.units import ConvUnit, Head, ResidualBlock

from ..training.conftest import write_data

SETTINGS = [
    "--dataset", "npz", "--augment", "none", "--model", "tests.analysis.nets:three_units", "--batch-size", "16",
    "--steps", "2", "--device", "cpu", "--lr", "0.05", "--epochs", "1", "--budget", "0.95",
]  # fmt: skip


def three_units(in_shape, num_classes, make_neuron):
    return nn.Sequential(
        ConvUnit(in_shape[0], 4, make_neuron),
        ConvUnit(4, 4, make_neuron),
        ResidualBlock(4, 8, make_neuron, stride=2),
        Head(8, num_classes),
    )


def one_unit(in_shape, num_classes, make_neuron):
    return nn.Sequential(ConvUnit(in_shape[0], 4, make_neuron), Head(4, num_classes))


def settings(folder, *more):
    """A command line, with data written beside the report."""
    data = folder / "data.npz"
    if not data.exists():
        write_data(data)
    return [*SETTINGS, "--data", str(data), *map(str, more)]
