"""Plots: lines that are told apart, labels that do not touch, and rows that some machine lacks."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from matplotlib.colors import to_rgb

from bench import kernels, memory, plots, training
from bench.results import Row
from bench.timing import Spread


def row(**fields) -> Row:
    return Row(**({"benchmark": "b", "dtype": "float32", "spread": Spread(1, 2, 3)} | fields))


def test_no_two_lines_look_alike():
    styles = [plots.style(place) for place in range(16)]
    for key in ("color", "marker"):
        assert len({style[key] for style in styles}) == 16
    for a in range(12):
        for b in range(a):
            colors = [to_rgb(styles[place]["color"]) for place in (a, b)]
            assert math.dist(*colors) > 0.2, (styles[a], styles[b])
    looks = {tuple(plots.style(place).values()) for place in range(40)}
    assert len(looks) == 40


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_labels_keep_their_order_and_their_distance(count):
    rng = random.Random(count)
    for _ in range(50):
        wanted = [rng.choice([0.0, 0.5, 0.51, 1.0, rng.random()]) for _ in range(count)]
        places = plots.apart(wanted, 0.05)
        ranked = sorted(range(count), key=lambda i: (wanted[i], places[i]))
        for below, above in itertools.pairwise(ranked):
            assert places[above] - places[below] >= 0.05 - 1e-9
        assert min(places) >= -1e-9
        assert max(places) <= 1 + 1e-9


def test_labels_that_have_room_stay_where_their_lines_end():
    assert plots.apart([0.9, 0.1, 0.5], 0.05) == pytest.approx([0.9, 0.1, 0.5])
    assert plots.apart([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])  # both move as little as they can
    assert plots.apart([], 0.1) == []
    crowded = plots.apart([0.5] * 30, 0.05)  # more than fit
    assert min(b - a for a, b in itertools.pairwise(crowded)) == pytest.approx(0.05)


def drawn(monkeypatch, draw, rows):
    """The panels of a picture."""
    found, original = [], plots.png

    def png(figure, panels, *rest) -> bytes:
        found.extend(panels)
        return original(figure, panels, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(plots, "png", png)
        assert draw(rows).startswith(b"\x89PNG")
    return found


def overlaps(boxes) -> bool:
    return any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_every_line_of_the_memory_plot_is_named_and_nothing_overlaps(monkeypatch):
    who = [f"{rule}, {form}" for rule in ("BPTT", "SLTT", "ELL", "STDL") for form in ("plain", "lean")]
    who += ["SpikingJelly BPTT", "SpikingJelly BPTT, step by step", "SpikingJelly BPTT, memory optimiser"]
    who += ["SpikingJelly SLTT"]
    over = {"what": memory.OVER_TIME, "unit": "GB"}
    rows = [row(**over, who=name, shape=f"512, T={T}", spread=Spread(T, T, T)) for name in who for T in (1, 32)]
    (panel,) = drawn(monkeypatch, memory.plot, rows)
    assert [text.get_text() for text in panel.texts] == who
    renderer = panel.figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in panel.texts]
    assert not overlaps(boxes), "all lines end in one point, their names must not"
    assert max(box.x1 for box in boxes) <= panel.figure.bbox.x1, "cut off at the right"
    lines = [line for line in panel.lines if len(line.get_xdata()) == 2 and line.get_linewidth() > 1]
    assert len({line.get_color() for line in lines}) == len(who) == 12


def test_a_name_looks_the_same_in_every_panel_and_on_every_machine(monkeypatch):
    step = {"unit": "M neurons/s", "shape": "1×2^10"}
    everyone = ["FusedLIF", "reference", "torch.compile", "SpikingJelly LIFNode", "snnTorch Leaky"]
    what = ["forward and backward, online, T=1", "forward and backward, exact, T=1"]
    all_rows = [row(**step, who=who, what=one) for one in what for who in everyone]
    colors = []
    for rows in (all_rows, [one for one in all_rows if one.who in ("FusedLIF", "snnTorch Leaky")]):
        panels = drawn(monkeypatch, kernels.plot, rows)
        colors += [
            {text.get_text(): line.get_color() for text, line in zip(panel.texts, panel.lines, strict=False)}
            for panel in panels
        ]
    assert len(colors) == 4
    assert colors[0] == colors[1]
    assert colors[2] == colors[3] == {name: colors[0][name] for name in ("FusedLIF", "snnTorch Leaky")}


def test_a_quick_run_has_readable_axes(monkeypatch):
    over = {"what": memory.OVER_TIME, "unit": "GB", "who": "STDL, lean"}
    points = {1: 1.5, 2: 3.1, 4: 15.8}  # little more than a power of ten
    rows = [row(**over, shape=f"512, T={T}", spread=Spread(gb, gb, gb)) for T, gb in points.items()]
    (panel,) = drawn(monkeypatch, memory.plot, rows)
    low, high = panel.get_ylim()
    written = [
        tick.get_text() for tick, y in zip(panel.get_yticklabels(), panel.get_yticks(), strict=True) if low < y < high
    ]
    assert written == ["2", "5", "10"]
    assert not any(tick.get_text() for tick in panel.get_yticklabels(minor=True))
    step = {"unit": "M neurons/s", "what": "forward and backward, exact, T=4"}
    (panel,) = drawn(monkeypatch, kernels.plot, [row(**step, who="FusedLIF", shape="4×2^20")])
    (end, _) = (panel.transData + panel.transAxes.inverted()).transform((2.0**20, 2))
    assert 0.85 < end < 1, "a single point is far from its name"


def test_other_dtypes_and_directions_are_not_drawn():
    step = {"unit": "M neurons/s", "shape": "1×2^10", "who": "FusedLIF"}
    assert kernels.plot([row(**step, what="forward, online, T=1")]) is None
    assert kernels.plot([row(**step, what="forward and backward, online, T=1", dtype="float16")]) is None


def test_bars_of_a_machine_with_few_libraries(monkeypatch):
    step = {"what": training.WHAT, "shape": "width 1"}
    rows = [row(**step, who="STDL, lean", unit="samples/s"), row(**step, who="STDL, lean", unit="MB")]
    rows.append(row(**step, who="SpikingJelly BPTT", unit="samples/s"))  # no peak of it
    speed, peak = drawn(monkeypatch, training.plot, rows)
    assert [text.get_text().strip() for text in speed.texts] == ["2", "2"]
    assert [text.get_text().strip() for text in peak.texts] == ["2"]
    assert speed.patches[0].get_facecolor() != speed.patches[1].get_facecolor()


def test_nothing_to_draw_is_no_picture():
    for benchmark in (kernels, memory, training):
        assert benchmark.plot([]) is None
