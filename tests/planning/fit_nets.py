"""Small networks to cut, one of each kind of unit."""

import functools

import torch
from torch import nn

from stdl_engine import FusedLIF
from stdl_engine.memory.layers import SpikeAvgPool2d
from stdl_engine.units import ConvUnit, Head, ResidualBlock, SEWBlock

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)
IMAGE = (3, 16, 16)


def residual(neuron=FusedLIF):
    blocks = [
        ResidualBlock(8, 8, neuron),
        ResidualBlock(8, 16, neuron, stride=2),
        ResidualBlock(16, 32, neuron, stride=2),
    ]
    return nn.Sequential(ConvUnit(3, 8, neuron), *blocks, Head(32, 10))


def convolutional():
    pooled = functools.partial(ConvUnit, pool=SpikeAvgPool2d(2))
    return nn.Sequential(ConvUnit(3, 8), pooled(8, 8), ConvUnit(8, 16), pooled(16, 32), Head(32, 10))


def counting():
    blocks = [SEWBlock(8, 8), SEWBlock(8, 8), SEWBlock(8, 16, stride=2)]
    return nn.Sequential(ConvUnit(3, 8), *blocks, Head(16, 10))
