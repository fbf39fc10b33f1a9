"""README's picture: its bars are as long as its figures say, and the committed one is of today's planner."""

import re
import xml.etree.ElementTree

from bench import memory_table, picture

PEAKS = {"bptt": {"paper": 16.0, "lean": 8.0}, "stdl": {"paper": 4.0, "lean": 1.0}}


def test_bars_are_in_proportion():
    drawn = xml.etree.ElementTree.fromstring(picture.svg(PEAKS))
    space = "{http://www.w3.org/2000/svg}"
    bars = [float(bar.get("width")) for bar in drawn.iter(f"{space}rect") if float(bar.get("x", 0)) == picture.LEFT]
    bars = [width for width in bars if width != 12.0]  # of the legend
    assert [round(width / bars[-1]) for width in bars] == [16, 8, 4, 1]
    ends = [float(text.get("x")) for text in drawn.iter(f"{space}text") if text.text.endswith("GB")]
    assert max(ends) + 8 * len("16.00 GB") <= picture.WIDTH


def test_the_committed_picture_has_today_s_figures():
    """One bar of eight: planning them all takes half a minute."""
    peak = memory_table.peak_gb(picture.RECIPE, "sltt", "lean")
    assert f"{peak:.2f} GB" in re.findall(r">([\d.]+ GB)<", picture.PICTURE.read_text())
