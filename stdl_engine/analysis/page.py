"""One page of all exhibits: self-contained HTML for a phone, for paper, and for light and dark mode."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from . import charts
from .exhibits import Exhibit, Section

STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1d2129;--soft:#5b6270;--line:#d9dce2;--card:#f6f7f9;--link:#1659a0}
@media(prefers-color-scheme:dark){:root{--page:#14171c;--text:#e6e8ec;--soft:#a6adba;--line:#3a3f49;--card:#1c2027;--link:#7db8f0}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1120px;padding:16px;background:var(--page);color:var(--text);
font:16px/1.5 system-ui,sans-serif}h1{font-size:1.6rem;margin:.4em 0}h2{font-size:1.25rem;margin:2em 0 .3em;
border-top:1px solid var(--line);padding-top:1em}h3{font-size:1.05rem;margin:0 0 .4em}a{color:var(--link)}
p{margin:.4em 0}.soft,figcaption p{color:var(--soft);font-size:.9rem}nav{display:flex;flex-wrap:wrap;gap:.3em 1em}
figure{margin:1.2em 0;padding:14px;background:var(--card);border:1px solid var(--line);border-radius:8px;
break-inside:avoid}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:10px}
.charts svg{width:100%;max-width:540px;height:auto;margin:0 auto}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;margin:.4em 0}th,td{text-align:left;padding:4px 12px 4px 0;
border-bottom:1px solid var(--line);vertical-align:top}td+td,th+th{text-align:right}
pre{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px;font-size:.8rem}
@media print{:root{--page:#fff;--text:#000;--soft:#333;--line:#bbb;--card:#fff;--link:#000}
body{max-width:none;padding:0}
nav{display:none}pre{white-space:pre-wrap}a{text-decoration:none}}
"""


def page(title: str, lead: str, sections: Sequence[tuple[str, Section]], commands: Sequence[str], end: str) -> str:
    """The whole page; `sections` come with the names that links refer to."""
    links = "".join(f'<a href="#{name}">{escape(section.title)}</a>' for name, section in sections)
    body = "".join(_section(name, section) for name, section in sections)
    listed = escape("\n".join(commands))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{charts.STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p>{escape(lead)}</p><nav>{links}<a href="#commands">Commands</a></nav>{body}'
        f'<h2 id="commands">Commands</h2><p>This report, and every run behind it:</p><pre>{listed}</pre>'
        f'<p class="soft">{escape(end)}</p></body></html>\n'
    )


def _section(name: str, section: Section) -> str:
    figures = "".join(map(_figure, section.exhibits))
    return f'<section><h2 id="{name}">{escape(section.title)}</h2><p>{escape(section.text)}</p>{figures}</section>'


def _figure(exhibit: Exhibit) -> str:
    drawn = f'<div class="charts">{"".join(exhibit.pictures)}</div>' if exhibit.pictures else ""
    table = f'<div class="scroll">{_table(*exhibit.table)}</div>' if exhibit.table else ""
    files = [f"data/{name}" for name in (f"{exhibit.name}.csv", *exhibit.files)]
    links = ", ".join(f'<a href="{escape(file)}">{escape(file)}</a>' for file in files)
    caption = f"<figcaption><p>{escape(exhibit.caption)} Values: {links}.</p></figcaption>"
    return f'<figure id="{exhibit.name}"><h3>{escape(exhibit.title)}</h3>{drawn}{table}{caption}</figure>'


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
