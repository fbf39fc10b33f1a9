"""Accuracy, peak memory and time against the number of time steps T."""

from __future__ import annotations

from . import published
from .exhibits import Section
from .runs_of_report import Trained
from .study import Study
from .sweeps import Point, exhibit

RULES = ("bptt", "stdl")
STEPS = (1, 2, 4, 6)


def points(study: Study) -> list[Point]:
    values = sorted({*STEPS, study.recipe.steps})
    return [
        Point(rule, str(T), study.over_seeds(rule, steps=T), published.said(published.STEPS[rule].get(T)))
        for rule in RULES
        for T in values
    ]


def needs(study: Study) -> list[Trained]:
    return [run for point in points(study) for run in point.runs]


def analyse(study: Study) -> Section:
    caption = f"Each T is trained and tested by itself. {study.described()}, T as given."
    text = "BPTT's memory grows with T, as it keeps every time step; STDL keeps one, and bits between subnetworks."
    of = "ResNet-18 on CIFAR-10, batch 512, plain memory"
    return Section("Time steps", text, [exhibit("steps", "Time steps", "time steps T", points(study), caption, of)])
