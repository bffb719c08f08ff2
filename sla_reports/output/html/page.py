"""The page as a whole. It loads nothing and runs nothing (its policy forbids both): a mailed report is as good as a served one."""

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from sla_reports.measures.summary import Summary
from sla_reports.output.html.burn_down import burn_down
from sla_reports.output.html.distribution import distribution_part
from sla_reports.output.html.elements import Markup, tag
from sla_reports.output.html.evidence import amendments, causes, coverage, exposure, provenance
from sla_reports.output.html.group_table import group_table
from sla_reports.output.html.manager import manager_page
from sla_reports.output.html.objectives import objectives
from sla_reports.output.html.style import STYLE
from sla_reports.output.html.timeline import timeline
from sla_reports.output.html.waterfall import waterfall

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_PARTS = {
    "timeline": "Timeline", "incidents": "Incidents", "rto": "Recovery times",
    "objectives": "Objectives", "budget": "Budget", "groups": "Groups",
    "causes": "Causes", "exposure": "Exposure", "coverage": "Coverage", "amendments": "Amendments",
    "provenance": "Provenance",
}  # fmt: skip


def report_html(summary: Summary, document: Mapping[str, Any], *, time_zone: str = "UTC") -> str:
    """The report; `document` is the provenance. Times are told in `time_zone`. The same input gives the same text."""
    zone = ZoneInfo(time_zone)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "Service level report"),
        tag("style", Markup(STYLE)),
    )
    links = [tag("a", title, href=f"#{anchor}") for anchor, title in _PARTS.items()]
    main = tag(
        "main",
        manager_page(summary, zone),
        tag("nav", *links, aria_label="Parts of the report"),
        timeline(summary, zone),
        waterfall(summary, zone),
        distribution_part(summary),
        objectives(summary, zone),
        burn_down(summary, zone),
        group_table(summary, time_zone),
        causes(summary),
        exposure(summary),
        coverage(summary),
        amendments(summary, zone),
        provenance(document),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', main), lang='en')}\n"
