"""The paper's rules for footprints, strides and pools, written a second time and in another way, to test against."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import pytest
from torch import nn

from stdl_engine.models import build_model
from stdl_engine.planning import auxiliary
from stdl_engine.planning import network as network_module
from stdl_engine.planning.footprint import footprint
from stdl_engine.planning.network import Network
from stdl_engine.units import ConvUnit, SEWBlock, Unit, shapes_only

SIDES = {"resnet18": 32, "resnet18_pooled": 224, "resnet19": 32, "vgg16": 32, "vgg11": 128, "sew_resnet34": 224}
"""Of the images each network is for."""

TABLE = {
    "resnet18": [
        ("64C3-64R", "AP(k2s2)-256R(s2)-512R(s2)-512R-10FC"),
        ("64R-128R(s2)", "256R(s2)-512R(s2)-10FC"),
        ("128R-256R(s2)-256R-512R(s2)-512R-10FC", ""),
    ],
    "resnet19": [
        ("128C3-128R", "256R(s2)-512R(s2)-10FC"),
        ("128R-128R", "AP(k2s2)-512R(s2)-10FC"),
        ("256R(s2)-256R-256R-512R(s2)-512R-10FC", ""),
    ],
    "vgg16": [
        ("64C3", "AP(k16s16)-512C3-10FC"),
        ("64C3-AP(k2s2)-128C3", "AP(k8s8)-512C3-10FC"),
        (
            "128C3-AP(k2s2)-256C3-256C3-256C3-AP(k2s2)-512C3-512C3-512C3-AP(k2s2)-512C3-512C3-512C3-10FC",
            "",
        ),
    ],
    "sew_resnet34": [
        ("64C3-AP(k3s2p1)-64SEWR-64SEWR-64SEWR", "AP(k4s4)-512SEWR(s2)-512SEWR-512SEWR-10FC"),
        (
            "128SEWR(s2)-128SEWR-128SEWR-128SEWR-256SEWR(s2)-256SEWR-256SEWR-256SEWR-256SEWR-256SEWR-"
            "512SEWR(s2)-512SEWR-512SEWR-10FC",
            "",
        ),
    ],
}
TABLE["resnet18_pooled"] = [("64C3-AP(k2s2)-64R", TABLE["resnet18"][0][1]), *TABLE["resnet18"][1:]]
"""The published subnetworks and auxiliary networks; the pooled ResNet-18 is cut like the other."""


@functools.cache
def network(name: str, memory: str = "paper") -> Network:
    """A network at full width, on images of its own size, without numbers."""
    with shapes_only():
        model = build_model(name)
    return Network(model, (3, SIDES[name], SIDES[name]), memory)


@contextlib.contextmanager
def footprints_remembered() -> Iterator[None]:
    """For tests that plan the same networks many times: each part is measured once."""
    known = {}

    def remembered(module, in_shape, memory):
        key = (repr(module), in_shape, memory)
        if key not in known:
            known[key] = footprint(module, in_shape, memory)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auxiliary, "footprint", remembered)
        patch.setattr(network_module, "footprint", remembered)
        yield


def rows(plan) -> list[tuple[str, str]]:
    """A plan as the published table writes it."""
    return [("-".join(part.names), "-".join(part.auxiliary_names)) for part in plan.parts]


def pool_and_stride(unit: Unit, in_shape: tuple, out_shape: tuple) -> tuple[int, int]:
    """Of a unit in an auxiliary network: it keeps the resolution it has in the network."""
    f = in_shape[1] // out_shape[1]
    if isinstance(unit, ConvUnit):
        return f, 1
    return {1: (1, 1), 2: (1, 2)}.get(f, (f // 2, 2))


def layer_cost(unit: Unit, in_shape: tuple, out_shape: tuple) -> int:
    """Footprint of a unit in an auxiliary network: 3 maps a neuron layer, 1 (SEW: 3) a shortcut conv, 1 a pool."""
    channels, side, _ = in_shape
    pool, stride = pool_and_stride(unit, in_shape, out_shape)
    pooled = channels * (side // pool) ** 2 if pool > 1 else 0
    maps = 3
    if not isinstance(unit, ConvUnit):
        maps = 6
        if channels != out_shape[0] or stride != 1:
            maps += 3 if isinstance(unit, SEWBlock) else 1
    return pooled + maps * out_shape[0] * out_shape[1] * out_shape[2]


def unit_cost(unit: nn.Module, in_shape: tuple, out_shape: tuple) -> int:
    """Footprint of a unit where it stands in the network: a conv unit pools after it has fired."""
    if not isinstance(unit, ConvUnit):
        return layer_cost(unit, in_shape, out_shape)
    pooled = out_shape[0] * out_shape[1] * out_shape[2] if unit.pool else 0
    return 3 * unit.out_channels * in_shape[1] * in_shape[2] + pooled
