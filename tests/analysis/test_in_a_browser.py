"""The page in headless Chromium, on a phone and on a desk: no errors, nothing wider than the screen."""

import html
import json
import shutil
import subprocess

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

LOOK = """
<script>
addEventListener("error", event => failed.push(String(event.message)));
const failed = [];
addEventListener("load", () => {
  const wide = document.documentElement.scrollWidth, screen = document.documentElement.clientWidth;
  const charts = [...document.querySelectorAll("figure svg.chart")].map(svg => {
    const box = svg.getBoundingClientRect(), words = [...svg.querySelectorAll("text")];
    const outside = words.filter(word => {
      const own = word.getBoundingClientRect();
      return own.left < box.left - 2 || own.right > box.right + 2 || own.bottom > box.bottom + 2 || own.top < box.top - 2;
    });
    return {wide: box.width, high: box.height, outside: outside.map(word => word.textContent),
            labels: svg.querySelectorAll(".x-label, .y-label").length, title: svg.getAttribute("aria-label")};
  });
  const seen = {failed, wide, screen, charts, figures: document.querySelectorAll("figure").length,
    captions: [...document.querySelectorAll("figure")].filter(f => f.querySelector("h3") && f.querySelector("figcaption")).length};
  const said = document.createElement("pre");
  said.id = "seen";
  said.textContent = JSON.stringify(seen);
  document.body.replaceChildren(said);
});
</script>
"""  # noqa: E501


def look_at(page, width, tmp_path):
    """What a browser makes of the page, as a script of the test's own says."""
    copy = tmp_path / "page.html"
    copy.write_text(page.read_text().replace("</head>", f"{LOOK}</head>"))
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--force-device-scale-factor=1", "--dump-dom"]
    frame = f'<iframe src="page.html" style="width:{width}px;height:3000px;border:0"></iframe>'
    (tmp_path / "frame.html").write_text(frame)  # a window cannot be as narrow as a phone
    gather = "<script>onload=()=>setTimeout(()=>{document.body.textContent="
    gather += "document.querySelector('iframe').contentDocument.getElementById('seen').textContent},500)</script>"
    (tmp_path / "frame.html").write_text(f"<!doctype html><body>{frame}{gather}</body>")
    command = [BROWSER, *options, "--allow-file-access-from-files", (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    text = html.unescape(done.stdout)
    return json.loads(text[text.index('{"failed"') : text.rindex("}") + 1])


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser(report, tmp_path, width):
    seen = look_at(report / "index.html", width, tmp_path)
    assert seen["failed"] == []
    assert seen["screen"] == width
    assert seen["wide"] <= width
    assert seen["captions"] == seen["figures"] >= 10
    assert len(seen["charts"]) >= 20
    for chart in seen["charts"]:
        assert chart["title"]
        assert chart["labels"] == 2, chart
        assert chart["outside"] == [], chart
        assert 250 < chart["wide"] <= 700
        assert chart["high"] > 90
