"""How the page looks: light, dark and on paper, by one set of colours. Nothing is told by a colour alone (shapes differ too)."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --line: #d0d7de; --band: #f6f8fa;
  --up: #1a7f37; --down: #cf222e; --unknown: #8250df; --planned: #0969da; --excluded: #9a6700;
  --s0: #cf222e; --s1: #bc4c00; --s2: #9a6700; --s3: #1a7f37; --s4: #0969da; --s5: #8250df; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --paper: #0d1117; --line: #3d444d;
  --band: #151b23; --up: #3fb950; --down: #ff7b72; --unknown: #bc8cff; --planned: #58a6ff; --excluded: #d29922;
  --s0: #ff7b72; --s1: #f0883e; --s2: #d29922; --s3: #3fb950; --s4: #58a6ff; --s5: #bc8cff; } }
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 1.5rem;
  max-width: 72rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; } h3 { font-size: 1rem; }
p.soft, .soft, figcaption { color: var(--soft); font-size: .87rem; }
.verdict { font-size: 1.6rem; font-weight: 700; border-left: .5rem solid; padding: .4rem .8rem; margin: 1rem 0;
  background: var(--band); }
.met { color: var(--up); } .breached { color: var(--down); } .undecidable { color: var(--unknown); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; }
.tile { border: 1px solid var(--line); padding: .7rem .9rem; overflow-wrap: anywhere; }
.tile b { display: block; font-size: 1.35rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { text-align: left; vertical-align: middle; padding: .25rem .5rem; border-bottom: 1px solid var(--line); }
thead th { background: var(--band); } tbody th { font-weight: 600; min-width: 9rem; overflow-wrap: anywhere; }
td { font-variant-numeric: tabular-nums; } .wide + .wide { margin-top: 1rem; }
svg { max-width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
nav { display: flex; flex-wrap: wrap; column-gap: 1rem; } a { color: var(--planned); }
.up { fill: var(--up); } .down { fill: var(--down); } .axis { stroke: var(--line); stroke-width: 1; fill: none; }
.unknown { fill: none; stroke: var(--unknown); stroke-width: 1.2; stroke-dasharray: 3 2; }
.disputed { fill: none; stroke: var(--s1); stroke-width: 2.5; }
.excluded { fill: none; stroke: var(--excluded); stroke-width: 2; }
.planned { fill: var(--paper); stroke: var(--planned); stroke-width: 1.5; } .open { fill: none; stroke: var(--down);
  stroke-width: 1.5; stroke-dasharray: 3 2; }
.left { fill: none; stroke: var(--up); stroke-width: 1.8; } .even { fill: none; stroke: var(--soft); stroke-dasharray: 5 4; }
.forecast { fill: none; stroke: var(--planned); stroke-width: 1.5; stroke-dasharray: 2 3; }
.likely { fill: var(--planned); opacity: .15; } .mark { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 4 2; }
.s0 { fill: var(--s0); } .s1 { fill: var(--s1); } .s2 { fill: var(--s2); } .s3 { fill: var(--s3); } .s4 { fill: var(--s4); }
.s5 { fill: var(--s5); }
@media print { :root { --ink: #000; --soft: #444; --paper: #fff; --band: #fff; --line: #999; --up: #1a7f37; --down: #cf222e;
    --unknown: #8250df; --planned: #0969da; --excluded: #9a6700; color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  nav { display: none; } .manager { break-after: page; } tr, svg, .tile { break-inside: avoid; } h2 { break-after: avoid; }
  thead { display: table-header-group; } .wide { overflow: visible; } @page { margin: 15mm; }
  table { font-size: 7.5pt; } th, td { padding: .15rem .25rem; overflow-wrap: anywhere; } }
"""
