"""docs/runbooks: a page for each alert of the chart, with three parts.

The verbs, labels, condition types and Event reasons that it names exist.

What its commands print is looked at on the two nodes (`tests/node/runbooks.py`, the check `runbooks`); what they say to do is done
in the sandbox (`tests/real/test_page_commands.py`).
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import ConditionType
from brokergroup_operator.kubectl.main import app
from tests.node.runbooks import FOLDER, PARTS, commands_of, filled, parts_of
from tests.real.test_alerts import CASES

CHART = Path(__file__).resolve().parents[2] / "charts" / "brokergroup-operator"
RULES = yaml.load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
ALERTS: list[dict[str, Any]] = RULES["groups"][0]["rules"]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
WORDS = {"BROKER-ID": "2", "EPOCH": "9", "NODE": "node1"}
# kubectl's own verbs that a page may use. READING changes nothing.
READING = {"get", "logs", "describe"}
CHANGING = {"annotate", "taint"}


def plain(command: str) -> list[str]:
    for word, value in WORDS.items():
        command = re.sub(rf"\b{word}\b", value, command)
    return shlex.split(filled(command, "orders"))


def test_each_alert_has_a_page_and_names_it() -> None:
    assert {rule["alert"] for rule in ALERTS} == PAGES.keys()
    assert CASES.keys() == PAGES.keys(), "tests/real/test_alerts.py judges each alert"
    for rule in ALERTS:
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{rule['alert']}.md"


@pytest.mark.parametrize("alert", PAGES)
def test_a_page_says_what_it_means_what_to_look_at_and_what_to_do(alert: str) -> None:
    assert PAGES[alert].startswith(f"# {alert}\n")
    parts = parts_of(PAGES[alert])
    assert tuple(parts) == PARTS
    assert all(text.strip() for text in parts.values())
    assert commands_of(parts["Look at this"])
    assert commands_of(parts["What it means"]) == []


@pytest.mark.parametrize("alert", PAGES)
def test_every_command_is_one(alert: str) -> None:
    """A command of the plugin is parsed as it stands, and not run; of kubectl the verb is known."""
    parts = parts_of(PAGES[alert])
    for part, command in ((one, command) for one in PARTS for command in commands_of(parts[one])):
        program, verb, *rest = plain(command)
        assert program == "kubectl", command
        if verb == "brokergroup":
            name, *arguments = rest
            known = typer.main.get_group(app).commands
            assert name in known, command
            known[name].make_context(name, arguments)  # raises a UsageError
            assert part == "Do that" or name in {"status", "explain", "history", "lag"}, command
        else:
            assert verb in (READING if part == "Look at this" else READING | CHANGING), command


def test_what_commands_select_by_is_there() -> None:
    text = "".join(PAGES.values())
    assert set(re.findall(r"-l (brokergroup[\w./-]+)=", text)) == {names.LABEL_BROKER_GROUP}
    assert set(re.findall(r'@.type=="(\w+)"', text)) <= {str(one) for one in ConditionType}
    told = (FOLDER.parent / "reference" / "brokergroup.md").read_text(encoding="utf-8")
    for reason in re.findall(r"reason=(\w+)", text):
        assert f"| `{reason}` |" in told, reason


def inhibit_rules() -> list[dict[str, Any]]:
    """Those that a user copies from docs/tasks/monitoring.md; a real Alertmanager applies them in tests/real/test_inhibition.py."""
    text = (FOLDER.parent / "tasks" / "monitoring.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(inhibit_rules:.*?)^```$", text, re.DOTALL | re.MULTILINE)
    rules: list[dict[str, Any]] = yaml.safe_load(block)["inhibit_rules"]
    return rules


def test_inhibition_names_alerts_that_are_there_and_silences_no_cause() -> None:
    silenced: set[tuple[str, str]] = set()
    for rule in inhibit_rules():
        sources, targets = (
            set(re.findall(r"BrokerGroup\w+", rule[side][0])) for side in ("source_matchers", "target_matchers")
        )
        assert sources | targets <= PAGES.keys()
        silenced |= {(source, target) for source in sources for target in targets}
    assert not {(target, source) for source, target in silenced} & silenced, "two alerts silence each other"
