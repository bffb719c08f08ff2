"""The gate: whatever the sources say, the figures add up and the bounds contain what was planted; what does not add up is told."""

from __future__ import annotations

from dataclasses import replace

from sla_reports.measures.reconciliation import reconcile_totals
from sla_reports.output.html_page import report_html
from tests.sla import one_day
from tests.sla.planted.draws import violations
from tests.support.draws import examples


def test_drawn_reports_add_up_and_their_bounds_contain_the_planted_truth() -> None:
    """`make sla-truth` draws 400 of them, `make sla-draws` 10,000."""
    assert [found for seed in range(examples(30)) for found in violations(seed)] == []


def test_what_does_not_add_up_is_told_before_the_verdict() -> None:
    summary = one_day.summary()
    assert reconcile_totals(summary).faults == ()
    assert "do not add up" not in report_html(summary, {})
    first, *others = summary.groups
    wrong = replace(first, availability=replace(first.availability, down_ms=first.availability.down_ms + 1))
    broken = replace(summary, groups=(wrong, *others))
    told = reconcile_totals(broken)
    assert len(told.faults) >= 3
    assert f"{first.group}: spent budget" in " ".join(told.faults)
    page = report_html(broken, {})
    assert page.index("The figures do not add up") < page.index("Breached: at least one group")
