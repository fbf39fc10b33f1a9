"""The tables of each benchmark in docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable

from .markdown import Row, figure, number, pivot, table

Section = Callable[[list[Row]], list[str]]


def kernels(rows: list[Row]) -> list[str]:
    """Rates with the share of copy_, then ratios; a table for each setting and dtype."""
    rows = [row for row in rows if row["value"]]
    share = {_key(row): number(row["value"]) for row in rows if row["unit"] == "of copy_"}
    parts = [
        "Millions of neuron updates per second, in brackets the share of what `Tensor.copy_` allows for the bytes\n"
        "that must be moved, then our rate over theirs. Sizes are steps × neurons."
    ]
    for what, dtype in dict.fromkeys((row["what"], row["dtype"]) for row in rows):
        mine = [row for row in rows if row["what"] == what and row["dtype"] == dtype]
        rates = [row for row in mine if row["unit"] == "M neurons/s"]
        parts.append(f"### {what}, {dtype}")
        parts.append(
            pivot(rates, _who, _shape, lambda row: f"{number(row['value'])} ({share.get(_key(row), '?')})", "M/s")
        )
        ratios = [row for row in mine if row["unit"] == "x"]
        parts.append(pivot(ratios, lambda row: row["against"], _shape, figure, "FusedLIF against"))
    return parts


def static(rows: list[Row]) -> list[str]:
    """Bytes beside the minimum, the same job by SpikingJelly, and launches."""
    least = {(row["who"], row["dtype"]): row["value"] for row in rows if row["what"] == "bytes against the minimum"}
    moved = [row for row in rows if row["what"] == "bytes a neuron and step" and row["value"]]
    lines = [
        (r["who"], r["dtype"], number(r["value"]), number(least.get((r["who"], r["dtype"]), "nan")), r["note"])
        for r in moved
    ]
    headings = ("kernel", "dtype", "bytes a neuron and step", "times the minimum", "compiled for sm_90")
    same = [row for row in rows if row["what"].startswith("exact LIF") and row["unit"] == "bytes"]
    launches = [row for row in rows if row["unit"] == "launches"]
    parts = [table(headings, lines)]
    if same:
        cell: Callable[[Row], str] = lambda row: f"{number(row['value'])} ({row['note']})"  # noqa: E731
        parts += [
            "The same job by SpikingJelly's Triton kernel, bytes a neuron and step:",
            pivot(same, _what, _who, cell),
        ]
    parts += ["Kernels launched a time step:", pivot(launches, _who, lambda r: _rest(r["what"]), figure)]
    return parts


def memory(rows: list[Row]) -> list[str]:
    """Published and planned peaks, peaks over time steps, and real tensors."""
    parts, gigabytes = [], [row for row in rows if row["unit"] == "GB"]
    over = "resnet18 over time steps"
    published = [row for row in gigabytes if row["what"] != over]
    parts += [
        "Peak GB (1e9 bytes) of a training step; published, and planned in the plain and the lean form:",
        pivot(published, lambda row: f"{row['what']}, {row['shape']}: {row['who'].partition(', ')[0]}",
              lambda row: row["who"].rpartition(", ")[2], lambda row: f"{float(row['value']):.2f}"),
    ]  # fmt: skip
    curve = [row for row in gigabytes if row["what"] == over]
    parts += [
        "ResNet-18 at batch 512 over time steps, GB:",
        pivot(curve, _who, lambda row: row["shape"].rpartition(", ")[2], lambda row: f"{float(row['value']):.2f}"),
        "The same, times the memory of STDL in its lean form:",
        pivot([r for r in rows if r["unit"] == "x less"], lambda row: row["against"],
              lambda row: row["shape"].rpartition(", ")[2], figure),
    ]  # fmt: skip
    real = [row for row in rows if row["unit"] == "MB"]
    planned = {row["who"]: number(row["value"]) for row in rows if row["against"] == "planned / measured"}
    lines = [(row["who"], number(row["value"]), planned.get(row["who"], "")) for row in real]
    if real:
        parts.append(f"{real[0]['what']}, {real[0]['shape']}:")
        parts.append(table(("", "measured MB", "planned / measured"), lines))
    return parts


def training(rows: list[Row]) -> list[str]:
    """Samples per second and peaks, then the engine's own cost, the protocol, and the profile where there is one."""
    parts = []
    step = [row for row in rows if row["what"] == "resnet18, training step"]
    for shape in dict.fromkeys(row["shape"] for row in step):
        mine = [row for row in step if row["shape"] == shape]
        peaks = {row["who"]: number(row["value"]) for row in mine if row["unit"] == "MB"}
        rates = [row for row in mine if row["unit"] == "samples/s"]
        lines = [(r["who"], figure(r), peaks.get(r["who"], ""), r["note"]) for r in rates]
        parts += [f"### ResNet-18, {shape}", table(("", "samples/s", "peak MB", "layout"), lines)]
        ratios = [row for row in mine if row["unit"] == "x"]
        parts.append(pivot(ratios, _who, lambda row: f"against {row['against']}", figure))
    profile = [row for row in rows if row["what"].endswith("time by operator")]
    for shape in dict.fromkeys(row["shape"] for row in profile):
        lines = [(f"`{r['who']}`", number(r["value"]), r["note"]) for r in profile if r["shape"] == shape]
        parts += [f"Where STDL's time goes at {shape}, own time of the longest operators:"]
        parts.append(table(("operator", "% of the step", ""), lines))
    engine = [row for row in rows if row["what"] in ("engine overhead", "lean / paper")]
    lines = [(r["what"], r["who"], f"{figure(r)} {r['unit']}", r["target"]) for r in engine]
    if lines:
        parts += [f"### The engine's own cost, {engine[0]['shape']}", table(("", "", "found", "target"), lines)]
    protocol = [row for row in rows if row["what"].startswith("Linear(")]
    if protocol:
        parts.append("### Linear layer and neurons, 500 steps, batch 16, forward and backward")
        spent = [row for row in protocol if row["unit"] == "ms" and row["value"]]
        parts.append(pivot(spent, _who, _shape, figure, "ms"))
        ratios = [row for row in protocol if row["unit"] == "x"]
        parts.append(pivot(ratios, lambda row: row["against"], _shape, figure, "FusedLIF against"))
    return parts


SECTIONS: dict[str, Section] = {"kernels": kernels, "static": static, "memory": memory, "training": training}


def _key(row: Row) -> tuple[str, ...]:
    return row["what"], row["dtype"], row["shape"], row["who"]


def _who(row: Row) -> str:
    return row["who"]


def _what(row: Row) -> str:
    return row["what"]


def _shape(row: Row) -> str:
    return row["shape"]


def _rest(text: str) -> str:
    return text.partition(", ")[2]
