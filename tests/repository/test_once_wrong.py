"""Former mistakes of pages, which must stay corrected.

Others of that kind: test_examples.py (a manifest that `apply` refuses, a NameServer that nothing brings), real/test_quick_start.py
(`mqadmin` on a Debian), migrate/test_migrate_command.py (the exit code of a plan that began nothing), demo/test_parts.py (a
hint to a cluster that has ended).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
import yaml

from brokergroup_operator.kubectl.main import app
from tests.repository.test_docs import PAGES, ROOT
from tests.support.page_blocks import page_blocks

NAMESPACE = "brokergroup-system"
HELM = re.compile(r"^(?:\$ )?helm (?:install|upgrade|uninstall|rollback)\b(?:.*\\\n)*.*$", re.MULTILINE)
# Of `GROUP` alone; the others ask for an object that an operation or a report is made of.
PATCHING = {"pause", "resume", "hibernate", "wake"}


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    return text_of(page).partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_every_page_installs_into_one_namespace() -> None:
    """One said the current namespace, another brokergroup-system."""
    blocks = [one.text for one in page_blocks(text_of("docs/tasks/install.md")) if one.what == "another release"]
    elsewhere = {command for text in blocks for command in HELM.findall(text)}
    assert len(elsewhere) == 2, "a second operator, and one of another name"
    found = [(page, command) for page in PAGES for command in HELM.findall(text_of(page))]
    commands = [(page, command) for page, command in found if command not in elsewhere]
    ours = [(page, command) for page, command in commands if "brokergroup-operator" in command]
    assert len(ours) >= 8
    assert [one for one in ours if f"--namespace {NAMESPACE}" not in one[1]] == []


def test_which_verbs_wait_is_as_the_page_says() -> None:
    """It said that all do; `hibernate` and `wake` did not."""
    said = section("docs/tasks/operations.md", "Operating")
    waiting, others = re.findall(
        r"\((`switchover`[^)]*)\) takes .*?(`pause`.*?) patch the group and take none", said, re.DOTALL
    )[0]
    commands = typer.main.get_group(app).commands
    able = {name for name, one in commands.items() if any("--wait" in param.opts for param in one.params)}
    assert set(re.findall(r"`([a-z]+)`", waiting)) == able
    assert set(re.findall(r"`([a-z]+)`", others)) == PATCHING
    assert not PATCHING & able


def test_pages_say_the_same_two_ways_out_of_a_dead_node() -> None:
    """One said to wait, the other to force the pod's deletion."""
    failure = next(
        line for line in text_of("docs/tasks/failure-modes.md").splitlines() if line.startswith("| Node dead")
    )
    life = section("docs/concepts/life.md", "Drained and lost nodes")
    reason = text_of("docs/tasks/condition-reasons.md").partition("### PodStuckTerminating\n")[2].partition("\n### ")[0]
    for told in (failure, life, reason):
        assert "kubectl taint node NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in told
        assert re.search(r"rebuild", told, re.IGNORECASE)
        assert "--force" not in told


def test_what_is_off_by_default_is_said_to_be() -> None:
    """A page said that alerts come with the chart."""
    values = yaml.safe_load(text_of("charts/brokergroup-operator/values.yaml"))
    assert not values["metrics"]["podMonitor"]
    assert not values["metrics"]["prometheusRule"]
    assert not values["dashboards"]["create"]
    monitoring = text_of("docs/tasks/monitoring.md")
    assert "off by default" in monitoring.partition("## ")[0]
    assert "--set metrics.podMonitor=true --set metrics.prometheusRule=true --set dashboards.create=true" in monitoring


@pytest.mark.parametrize("page", ["README.md", "docs/concepts/promises.md"])
def test_strict_is_promised_together_with_its_gap(page: str) -> None:
    """README promised it without the gap that the architecture names."""
    open_ends = section("docs/concepts/architecture.md", "What stays open")
    assert re.search(r"Java", open_ends)
    assert re.search(r"`Strict`", open_ends)
    text = text_of(page)
    assert re.search(r"Java 5\.5\.0.*?(?:loses its last slave)", text, re.DOTALL)
    assert "architecture.md#what-stays-open" in text


@pytest.mark.parametrize(
    ("question", "page", "says"),
    [
        (
            "connecting clients", "docs/start/connect-clients.md",
            ["A Java producer", "A consumer", "Through a Proxy", "pollNameServerInterval"],
        ),
        ("uninstalling", "docs/tasks/install.md", ["helm uninstall brokergroup-operator", "to delete it for good"]),
        ("deleting data", "docs/tasks/delete.md", ["persistentvolumeclaim", "brokergroupstate"]),
        ("upgrading and back", "docs/tasks/upgrade.md", ["## The operator", "## The brokers", "helm rollback", "To go back"]),
        ("monitoring", "docs/tasks/monitoring.md", ["metrics.podMonitor=true", "Without it: scrape port"]),
        ("what Strict costs", "docs/concepts/promises.md", ["sends per second", "longest time without an acknowledgement"]),
        ("sizing", "docs/tasks/sizing.md", ["## Disks", "## Replicas", "## Memory"]),
        ("replica or Java", "docs/concepts/replica-or-java.md", ["Java", "Python"]),
        ("the plugin alone", "docs/tasks/install.md", ["An archive of 9 MB that needs only Python"]),
    ],
)  # fmt: skip
def test_what_people_searched_for_has_a_page_in_the_index(question: str, page: str, says: list[str]) -> None:
    text = text_of(page)
    assert [one for one in says if one not in text] == [], question
    assert f"({Path(page).relative_to('docs')}" in text_of("docs/README.md")
    assert str(Path(page).relative_to("docs")) in text_of("docs/site/mkdocs.yml")


def test_the_readmes_first_screen_shows_page_report_and_dashboard() -> None:
    shown = section("README.md", "What you see")
    assert re.findall(r"\(docs/pictures/([\w-]+)\.png\)", shown) == [
        "page-failover",
        "sla-report",
        "dashboard-failover",
    ]
    assert "not a picture of Grafana" in shown
