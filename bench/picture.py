"""README's picture: the peak memory of a training step under every learning rule, plain and lean, side by side.

python -m bench.picture            plans ResNet-18 on CIFAR-10 (batch 512, T=4) and writes docs/peak_memory.svg
"""

from __future__ import annotations

from pathlib import Path

from stdl_engine.recipes import RECIPES

from .memory_table import peak_gb

PICTURE = Path(__file__).parent.parent / "docs" / "peak_memory.svg"
RECIPE = RECIPES["cifar10"]
TITLE = f"Peak memory of one training step: ResNet-18, CIFAR-10, batch {RECIPE.batch_size}, T={RECIPE.steps}, float32"
RULES = {
    "bptt": ("BPTT", "exact gradient"),
    "sltt": ("SLTT", "online in time"),
    "stdl": ("STDL", "online, in subnetworks"),
    "ell": ("ELL", "online, every unit alone"),
}
"""Each rule's name and a description of its gradient."""
COLORS = {"paper": "#9aa5b1", "lean": "#1f6feb"}
MEANINGS = {"paper": "plain PyTorch form", "lean": "stdl-engine (lean memory), same gradients"}

WIDTH, LEFT, RIGHT = 760, 190, 80
BAR, GAP, TOP = 20, 18, 70


def svg(peaks: dict[str, dict[str, float]]) -> str:
    """Horizontal bars, two per rule, from peaks in GB by rule and form of memory."""
    scale = (WIDTH - LEFT - RIGHT) / max(peak for forms in peaks.values() for peak in forms.values())
    height = TOP + len(peaks) * (2 * BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13" fill="#24292f" role="img">',
        f"<title>{TITLE}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="15" font-weight="bold">{TITLE}</text>',
    ]
    x = LEFT
    for form, meaning in MEANINGS.items():
        parts.append(f'<rect x="{x}" y="38" width="12" height="12" fill="{COLORS[form]}"/>')
        parts.append(f'<text x="{x + 18}" y="49">{meaning}</text>')
        x += 180
    y = TOP
    for rule, forms in peaks.items():
        name, kind = RULES[rule]
        parts.append(f'<text x="{LEFT - 12}" y="{y + 17}" text-anchor="end" font-weight="bold">{name}</text>')
        parts.append(f'<text x="{LEFT - 12}" y="{y + 34}" text-anchor="end" fill="#57606a">{kind}</text>')
        for form, peak in forms.items():
            length = peak * scale
            weight = ' font-weight="bold"' if form == "lean" else ""
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{COLORS[form]}"/>')
            parts.append(f'<text x="{LEFT + length + 6:.1f}" y="{y + 14}"{weight}>{peak:.2f} GB</text>')
            y += BAR
        y += GAP
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    peaks = {rule: {form: peak_gb(RECIPE, rule, form) for form in COLORS} for rule in RULES}
    for rule, forms in peaks.items():
        print(f"{rule:<5}", "   ".join(f"{form} {peak:.2f} GB" for form, peak in forms.items()))
    PICTURE.write_text(svg(peaks))


if __name__ == "__main__":
    main()
