"""Accuracy, peak memory and time against the neuron model: LIF, PLIF and ALIF."""

from __future__ import annotations

from ..neurons import NEURONS
from . import published
from .exhibits import Section
from .runs_of_report import Trained
from .study import Study
from .sweeps import Point, exhibit

RULES = ("bptt", "stdl")


def points(study: Study) -> list[Point]:
    return [
        Point(
            rule, neuron.upper(), study.over_seeds(rule, neuron=neuron),
            published.said(published.NEURONS.get((neuron, rule))),
        )
        for rule in RULES
        for neuron in NEURONS
    ]  # fmt: skip


def needs(study: Study) -> list[Trained]:
    return [run for point in points(study) for run in point.runs]


def analyse(study: Study) -> Section:
    caption = f"The same network with different neurons. {study.described()}, neurons as given."
    text = "PLIF learns its decay, ALIF adapts its threshold and keeps a second state for it."
    of = "ResNet-18 on GAIT-DAY-DVS, T=20, batch 100, plain memory"
    shown = exhibit("neurons", "Neuron models", "neuron model", points(study), caption, of)
    return Section("Neuron models", text, [shown])
