"""An HTML page that needs nothing else: style and script inside, light and dark, readable without the script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { --paper: #fff; --ink: #1b1f24; --soft: #667080; --rule: #e3e7ec; --tint: #f5f7f9; --accent: #2563eb;
  --good: #15803d; --bad: #c2262e; --warn: #a16207;
  --c0: #2563eb; --c1: #d97706; --c2: #059669; --c3: #db2777; --c4: #7c3aed; --c5: #0891b2; color-scheme: light }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e4e8ed; --soft: #93a0b0; --rule: #2b3138;
  --tint: #1b2026; --accent: #6ea2ff; --good: #4ade80; --bad: #ff7b7b; --warn: #eab308;
  --c0: #6ea2ff; --c1: #f5a742; --c2: #34d399; --c3: #f472b6; --c4: #a78bfa; --c5: #22d3ee; color-scheme: dark } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2.2rem 1.5rem 4rem; max-width: 1400px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif }
h1 { margin: 0; font-size: 1.7rem; letter-spacing: -.01em } h1 small { font-size: .85rem; margin-left: .6rem;
  padding: .18rem .6rem; border-radius: 1rem; background: var(--tint); border: 1px solid var(--rule);
  vertical-align: .25rem; font-weight: 500; letter-spacing: 0 }
h1 small.done { color: var(--good) } h1 small.failed, h1 small.killed { color: var(--bad) }
h1 small.running { color: var(--accent) }
p.sub { color: var(--soft); margin: .3rem 0 1.6rem }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(126px, 1fr)); gap: .8rem; margin: 0 0 1.6rem }
.tiles div { padding: .7rem .9rem; border: 1px solid var(--rule); border-radius: 10px; background: var(--tint) }
.tiles dt { color: var(--soft); font-size: .78rem } .tiles dd { margin: 0; font-size: 1.1rem; font-weight: 600;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
.failure { border: 1px solid var(--bad); border-radius: 10px; margin: 0 0 1.6rem; overflow: hidden }
.failure h2 { margin: 0; padding: .5rem .9rem; color: var(--bad); font-size: 1rem }
.failure pre { border: 0; border-top: 1px solid var(--rule); border-radius: 0; margin: 0 }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(430px, 100%), 1fr)); gap: 1rem;
  margin-bottom: 1.6rem }
.charts section { position: relative; border: 1px solid var(--rule); border-radius: 10px; padding: .8rem .9rem .5rem }
.charts h2 { font-size: .92rem; margin: 0 0 .3rem; font-weight: 600 }
svg { display: block; width: 100%; height: auto; touch-action: pan-y }
svg text { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums }
text.y { text-anchor: end; dominant-baseline: middle } text.x { text-anchor: middle }
line.grid { stroke: var(--rule) }
.line { fill: none; stroke: currentColor; stroke-width: 1.7; stroke-linejoin: round; vector-effect: non-scaling-stroke }
.line.dashed { stroke-dasharray: 6 3 } .line.raw { opacity: .3; stroke-width: 1 }
circle.line { fill: currentColor } .line.faint { opacity: .35; stroke-dasharray: 3 3 }
.c0 { color: var(--c0) } .c1 { color: var(--c1) } .c2 { color: var(--c2) } .c3 { color: var(--c3) }
.c4 { color: var(--c4) } .c5 { color: var(--c5) }
rect.bar { fill: var(--c0); opacity: .8 }
.mark line { stroke: var(--soft); stroke-dasharray: 4 3 } .mark.bad line { stroke: var(--bad) }
.mark.bad text { fill: var(--bad) } .cursor { stroke: var(--soft); opacity: .7 }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: .1rem 0 .3rem; font-size: .82rem }
.legend span::before { content: ""; display: inline-block; width: .9rem; height: .2rem; border-radius: 2px;
  background: currentColor; margin-right: .4rem; vertical-align: .22rem }
.tip { position: absolute; pointer-events: none; background: var(--paper); border: 1px solid var(--rule);
  border-radius: 6px; padding: .25rem .5rem; font-size: .78rem; box-shadow: 0 2px 10px #0003; white-space: nowrap;
  font-variant-numeric: tabular-nums; z-index: 2 }
details { border-top: 1px solid var(--rule); padding: .2rem 0 } details[open] { padding-bottom: 1rem }
summary { cursor: pointer; font-weight: 600; padding: .55rem 0 } summary small { color: var(--soft); font-weight: 400;
  margin-left: .5rem }
input[type=search] { font: inherit; color: inherit; background: var(--tint); border: 1px solid var(--rule);
  border-radius: 8px; padding: .35rem .7rem; width: min(26rem, 100%); margin: .2rem 1rem .7rem 0 }
.scroll { overflow: auto; max-height: 34rem }
table { border-collapse: collapse; font-size: .86rem; min-width: 50% }
th { text-align: left; color: var(--soft); font-weight: 500; position: sticky; top: 0; background: var(--paper) }
td, th { padding: .22rem 1.4rem .22rem 0; vertical-align: top; border-bottom: 1px solid var(--rule) }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere } td:first-child { overflow-wrap: normal }
td code, pre { font: 12px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace }
td i { color: var(--soft); display: block; font-style: normal }
tr.applied td:nth-child(2) { color: var(--good) } tr.skipped td:nth-child(2) { color: var(--warn) }
tr.failed td:nth-child(2) { color: var(--bad) }
pre { overflow: auto; padding: .8rem .9rem; border: 1px solid var(--rule); border-radius: 8px; background: var(--tint);
  max-height: 34rem; margin: 0 }
@media print { details:not([open]) > * { display: block } .scroll, pre { max-height: none } }
"""

SCRIPT = """
for (const box of document.querySelectorAll("input[data-for]")) {
  const rows = [...document.getElementById(box.dataset.for).tBodies[0].rows]
  const own = document.querySelector(`input[data-own="${box.dataset.for}"]`)
  const filter = () => {
    const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean)
    for (const row of rows) {
      const text = row.textContent.toLowerCase()
      row.hidden = !words.every(word => text.includes(word)) || (own && own.checked && !row.classList.contains("own"))
    }
  }
  box.addEventListener("input", filter)
  if (own) own.addEventListener("input", filter)
  filter()
}
const charts = [...document.querySelectorAll("svg[data-chart]")].map(svg => ({svg, ...JSON.parse(svg.dataset.chart)}))
const [width, height, left, right, top_, bottom] = FRAME
const nearest = (points, x) => {
  let low = 0, high = points.length - 1
  while (high - low > 1) { const mid = (low + high) >> 1; if (points[mid][0] < x) low = mid; else high = mid }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high]
}
const clear = () => document.querySelectorAll(".cursor, .tip").forEach(each => each.remove())
const show = (chart, x) => {
  const [from, to] = chart.range
  if (x < from || x > to) return
  const found = chart.lines.map(line => [line, nearest(line.points, x)])
  const at = found.reduce((best, [, point]) => Math.abs(point[0] - x) < Math.abs(best - x) ? point[0] : best, Infinity)
  const px = left + (at - from) / (to - from) * (width - left - right)
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line")
  for (const [name, value] of Object.entries({class: "cursor", x1: px, x2: px, y1: top_, y2: height - bottom}))
    line.setAttribute(name, value)
  chart.svg.append(line)
  const tip = document.createElement("div")
  tip.className = "tip"
  tip.append("step " + at)
  for (const [each, [, value]] of found) {
    const row = document.createElement("div")
    row.className = "c" + each.colour
    row.textContent = each.name + "  " + Number(value.toPrecision(6))
    tip.append(row)
  }
  const box = chart.svg.getBoundingClientRect(), scale = box.width / width
  tip.style[px > width / 2 ? "right" : "left"] =
    (px > width / 2 ? (width - px) : px) * scale + 24 + "px"
  tip.style.top = box.top - chart.svg.parentElement.getBoundingClientRect().top + 24 + "px"
  chart.svg.parentElement.append(tip)
}
for (const chart of charts) {
  chart.svg.addEventListener("pointermove", event => {
    const box = chart.svg.getBoundingClientRect(), px = (event.clientX - box.left) / box.width * width
    const [from, to] = chart.range
    clear()
    for (const each of charts) show(each, from + (px - left) / (width - left - right) * (to - from))
  })
  chart.svg.addEventListener("pointerleave", clear)
}
"""


def document(title: str, body: str, frame: Sequence[int]) -> str:
    """The whole page; ``frame`` is the charts' width, height, and margins left, right, top, bottom."""
    script = SCRIPT.replace("FRAME", str(list(frame)))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body>{body}<script>{script}</script></body></html>\n"
    )


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """Results, each under its name."""
    items = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures)
    return f'<dl class="tiles">{"".join(items)}</dl>'


def table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], name: str = "", own: str = "") -> str:
    """Rows with their classes; cells are HTML already.

    One with a ``name`` can be searched; ``own`` is the text of a box that leaves the rows of class ``own``.
    """
    top = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join(f'<tr class="{kind}">{"".join(f"<td>{each}</td>" for each in cells)}</tr>' for kind, cells in rows)
    tools = f'<input type="search" data-for="{name}" placeholder="search" aria-label="search">' if name else ""
    tools += f'<label><input type="checkbox" data-own="{name}"> {escape(own)}</label>' if own else ""
    id_ = f' id="{name}"' if name else ""
    return f'{tools}<div class="scroll"><table{id_}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def section(title: str, content: str, note: str = "", opened: bool = False) -> str:
    """A part that folds; nothing where there is no content."""
    if not content:
        return ""
    small = f" <small>{escape(note)}</small>" if note else ""
    return f"<details{' open' * opened}><summary>{escape(title)}{small}</summary>{content}</details>"


def pre(text: str) -> str:
    """Text as it is."""
    return f"<pre>{escape(text)}</pre>" if text.strip() else ""


def code(text: object) -> str:
    """A word of code in a cell."""
    return f"<code>{escape(str(text))}</code>"
