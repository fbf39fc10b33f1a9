"""The learning rules side by side: accuracy, peak memory and time."""

from __future__ import annotations

from . import published
from .exhibits import Section
from .runs_of_report import Trained
from .study import Study
from .sweeps import Point, exhibit


def needs(study: Study) -> list[Trained]:
    return study.networks()


def analyse(study: Study) -> Section:
    points = [
        Point(runs[0].recipe.rule, label, runs, published.said(published.RULES.get(runs[0].recipe.rule)))
        for label, runs in study.groups().items()
    ]
    caption = f"Test accuracy after the last epoch, measured peak of a training step, and time. {study.described()}."
    text = "The same network, data, loss, optimizer and schedule; only the rule differs."
    of = "ResNet-18 on CIFAR-10 after 400 epochs, T=4, batch 512"
    shown = exhibit("rules", "Learning rules", "rule", points, caption, of, together=True)
    return Section("Learning rules", text, [shown])
