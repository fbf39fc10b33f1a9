"""How often the neurons of each unit fire, how many never or always do, and how large each unit's gradient is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import checkpoints
from ..building import placed, rule_options, sample_batch
from ..neurons import borrowed
from ..rules import CHOICES
from . import charts
from .exhibits import Exhibit, Section, mean_of
from .features import neuron_layers
from .runs_of_report import Trained
from .study import Study

SAMPLES, BATCH = 1024, 100
"""How many test samples are used at most, and how many at a time."""
COUNTS = ("neurons", "dead", "saturated")
GRADIENT_BATCHES = 4
"""The number of training batches over which gradient norms are averaged."""


@dataclass(frozen=True)
class Firing:
    """What the neurons of one unit do on many samples.

    Attributes:
        rates: spikes per neuron, by time step.
        neurons: how many there are.
        dead, saturated: how many of them never fire, and how many fire at every time step of every sample.
    """

    rates: list[float]
    neurons: int
    dead: int
    saturated: int


class _Layer:
    """The counts for one neuron layer."""

    def __init__(self, steps: int) -> None:
        self.sums = torch.zeros(steps, dtype=torch.float64)
        self.samples, self.t = 0, 0
        self.least: Tensor | None = None
        self.most: Tensor | None = None

    def see(self, _module: nn.Module, _inputs: object, spikes: Tensor) -> None:
        spikes = spikes.detach().float()
        low, high = spikes.amin(0), spikes.amax(0)
        self.least = low if self.least is None else torch.minimum(self.least, low)
        self.most = high if self.most is None else torch.maximum(self.most, high)
        self.sums[self.t] += spikes.sum(dtype=torch.float64).item()
        self.t = (self.t + 1) % len(self.sums)
        self.samples += len(spikes) if self.t == 0 else 0

    def extremes(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest output of each neuron."""
        assert self.least is not None, "the layer has run"
        assert self.most is not None, "the layer has run"
        return self.least, self.most


def firing(study: Study, run: Trained) -> list[Firing]:
    """The activity of every unit of a trained network, over all its neuron layers."""
    model = study.network(run)
    *units, _ = model
    seen = [[_Layer(study.recipe.steps) for _ in neuron_layers(unit)] for unit in units]
    layers = [layer for unit in units for layer in neuron_layers(unit)]
    hooks = [
        layer.register_forward_hook(count.see)
        for layer, count in zip(layers, (count for counts in seen for count in counts), strict=True)
    ]
    try:
        for x, _ in study.test_batches(SAMPLES, BATCH):
            with torch.no_grad(), borrowed(model.modules(), training=False, online=True, memory="lean"):
                for frame in study.frames(x):
                    model(frame)
    finally:
        for hook in hooks:
            hook.remove()
    return [_together(counts) for counts in seen]


def _together(counts: list[_Layer]) -> Firing:
    extremes = [count.extremes() for count in counts]
    neurons = sum(most.numel() for _, most in extremes)
    total = torch.as_tensor(sum(count.sums for count in counts)) / (neurons * counts[0].samples)
    dead = sum(int((most <= 0).sum()) for _, most in extremes)
    saturated = sum(int((least >= 1).sum()) for least, _ in extremes)
    return Firing(total.tolist(), neurons, dead, saturated)


class _Norms(Optimizer):
    """An optimizer that changes no weight, and notes how large its gradients are."""

    def __init__(self, parameters: Iterable[nn.Parameter], found: dict[nn.Parameter, Tensor]) -> None:
        super().__init__(parameters, {})
        self.found = found

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # none is ever given
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.found[parameter] = parameter.grad.double().norm()


def gradient_norms(study: Study, run: Trained) -> list[float]:
    """The Euclidean norm of each unit's gradient under the run's own rule, with auxiliary networks as they were
    trained, averaged over a few training batches."""
    model = study.network(run)
    found: dict[nn.Parameter, Tensor] = {}
    sample = sample_batch(study.recipe, study.device)
    rule = CHOICES[run.recipe.rule](model, lambda p: _Norms(p, found), sample, **rule_options(run.recipe))
    _, state, _ = checkpoints.load_last(run.path)
    auxiliary = [part.classifier for part in rule.subnetworks if not part.is_last]
    for classifier, values in zip(auxiliary, state["rule"]["auxiliary"], strict=True):
        classifier.load_state_dict(values)
    rule.scalers = []  # a scaler would scale what is measured
    norms = []
    batch = min(study.recipe.batch_size, len(study.data(study.recipe)[0].train))
    for x, y in study.train_batches(GRADIENT_BATCHES * batch, batch, full=True):
        found.clear()
        rule.step(placed(study.recipe, x, study.device), y.to(study.device), study.recipe.steps)
        norms.append([sum(float(found[p]) ** 2 for p in unit.parameters() if p in found) ** 0.5 for unit in model[:-1]])
    return [sum(column) / len(column) for column in zip(*norms, strict=True)]


def needs(study: Study) -> list[Trained]:
    return study.networks()


def analyse(study: Study) -> Section:
    names, steps = study.unit_names(), study.recipe.steps
    rates, neurons, gradients, over_time = [], [], [], []
    rate_lines, gradient_lines, shown, pictures = [], [], [], []
    for label, runs in study.groups().items():
        firings = [firing(study, run) for run in runs]
        norms = [gradient_norms(study, run) for run in runs]
        by_unit = [[sum(unit.rates) / steps for unit in one] for one in firings]
        means, deviations = zip(*(mean_of(column) for column in zip(*by_unit, strict=True)), strict=True)
        rate_lines.append(charts.Series(label, means, deviations))
        size, spread = zip(*(mean_of(column) for column in zip(*norms, strict=True)), strict=True)
        gradient_lines.append(charts.Series(label, size, spread))
        gradients += [(label, *row) for row in zip(names, size, spread, strict=True)]
        rates += [(label, *row) for row in zip(names, means, deviations, strict=True)]
        at = [[mean_of([one[unit].rates[t] for one in firings])[0] for unit in range(len(names))] for t in range(steps)]
        over_time += [(label, name, t + 1, at[t][unit]) for unit, name in enumerate(names) for t in range(steps)]
        series = [charts.Series(name, [at[t][unit] for t in range(steps)]) for unit, name in enumerate(names)]
        pictures.append(
            charts.lines(label, "time step", "spikes per neuron", [str(t + 1) for t in range(steps)], series)
        )
        total, dead, full = (
            sum(getattr(u, n) for one in firings for u in one) for n in ("neurons", "dead", "saturated")
        )
        shown.append((label, f"{sum(means) / len(means):.3f}", f"{dead / total:.2%}", f"{full / total:.2%}"))
        for unit, name in enumerate(names):
            own = [sum(getattr(one[unit], n) for one in firings) for n in COUNTS]
            neurons.append((label, name, own[0] // len(runs), own[1] / own[0], own[2] / own[0]))
    ran = f"{study.described()}; up to {SAMPLES} test samples."
    exhibits = [
        Exhibit(
            "rates", "Firing rate of every unit",
            f"Spikes per neuron and time step, all neuron layers of a unit together. {ran}",
            ("rule", "unit", "rate", "deviation"), rates,
            [charts.lines("Firing rate, unit by unit", "unit", "spikes per neuron and time step", names, rate_lines)],
        ),
        Exhibit(
            "rates_over_time", "Firing rate over time",
            f"Spikes per neuron at each time step, a line for each unit. {ran}",
            ("rule", "unit", "time_step", "rate"), over_time, pictures,
        ),
        Exhibit(
            "neurons_dead_and_saturated", "Neurons that never fire, and that always do",
            "Shares of all neurons: dead ones fire at no time step of any sample, saturated ones at every time step of "
            f"every sample. {ran}",
            ("rule", "unit", "neurons", "dead", "saturated"), neurons,
            table=(("rule", "mean rate", "dead", "saturated"), shown),
        ),
        Exhibit(
            "gradients", "Gradient of every unit",
            f"Euclidean norm of the gradient of a unit's parameters by the rule that trained it, on {GRADIENT_BATCHES} "
            f"training batches after training, auxiliary networks included. {study.described()}.",
            ("rule", "unit", "gradient_norm", "deviation"), gradients,
            [charts.lines("Gradient norm, unit by unit", "unit", "gradient norm (loss per unit of weight)", names,
                          gradient_lines)],
        ),
    ]  # fmt: skip
    text = (
        "A unit that hardly fires passes little on; one that always fires passes on nothing that depends on the sample."
    )
    return Section("Firing rates and gradients", text, exhibits)
