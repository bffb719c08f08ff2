"""Writes dashboards/brokergroup-failover.json: the Grafana dashboard, from the same metric names the operator exposes.

`python -m brokergroup_operator.observe.dashboards` writes it, `--check` only compares. The builder is a few functions over plain
dictionaries: the typed SDK on PyPI is versioned by Grafana release with an epoch and is experimental, and what we need of the
format is small. Every query is evaluated against a real Prometheus by a test.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from controller_core import metric_names as names

_PATH = Path("dashboards") / "brokergroup-failover.json"
_SCHEMA_VERSION = 39
_SELECT = '{namespace=~"$namespace", broker_group=~"$broker_group"}'
_HEIGHT = 8
_PER_ROW = 2

# A member's place for the state timeline: one number a member, so that a lane shows its whole life.
_ROLE_VALUES = ((names.ROLE_ABSENT, 0, "dark-red"), (names.ROLE_OUT_OF_SYNC, 1, "orange"), (names.ROLE_IN_SYNC, 2, "blue"),
                (names.ROLE_MASTER, 3, "green"))  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's JSON model; identical for identical metric names."""
    return {
        "uid": "brokergroup-failover",
        "title": "Broker groups: failover",
        "description": "Who is master, who is in sync, and how long each step of a failover took.",
        "tags": ["rocketmq", "brokergroup"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [_place(panel, index) for index, panel in enumerate(_panels())],
    }


def expressions(model: dict[str, Any]) -> list[str]:
    """Every query of a dashboard, with its variables left in."""
    return [target["expr"] for panel in model["panels"] for target in panel["targets"]]


def _panels() -> Iterator[dict[str, Any]]:
    yield _panel("Writable", "state-timeline", [(f"{names.GROUP_WRITABLE}{_SELECT}", "{{broker_group}}")], _on_off())
    roles = " or ".join(
        f'{value} * ({names.MEMBER_ROLE}{{namespace=~"$namespace", broker_group=~"$broker_group", role="{role}"}} == 1)'
        for role, value, _ in _ROLE_VALUES
    )
    yield _panel("Roles", "state-timeline", [(f"max by (broker_group, broker_id) ({roles})", "{{broker_group}} {{broker_id}}")],
                 {"mappings": [_mapping(_ROLE_VALUES)]})  # fmt: skip
    yield _panel("Master epoch", "timeseries", [(f"{names.MASTER_EPOCH}{_SELECT}", "{{broker_group}}")])
    yield _panel(
        "Members in the SyncStateSet", "timeseries", [(f"{names.SYNC_STATE_SET_SIZE}{_SELECT}", "{{broker_group}}")]
    )
    yield _panel("Heartbeat age", "timeseries",
                 [(f"{names.HEARTBEAT_AGE_SECONDS}{_SELECT}", "{{broker_group}} {{broker_id}}")], {"unit": "s"})  # fmt: skip
    yield _panel("Replica lag", "timeseries",
                 [(f"{names.REPLICA_LAG_BYTES}{_SELECT}", "{{broker_group}} {{broker_id}}")], {"unit": "bytes"})  # fmt: skip
    yield _panel("Failovers", "timeseries",
                 [(f"sum by (broker_group, cause, outcome) ({names.FAILOVERS_TOTAL}{_SELECT})",
                   "{{broker_group}} {{cause}} {{outcome}}")])  # fmt: skip
    phase = " / ".join(f"sum by (phase) ({names.FAILOVER_PHASE_SECONDS}_{part}{_SELECT})" for part in ("sum", "count"))
    yield _panel("Failover steps, mean since start", "bargauge", [(phase, "{{phase}}")], {"unit": "s"})
    yield _panel("Seconds without a writable master", "timeseries",
                 [(f"sum by (broker_group, cause) ({names.UNAVAILABLE_SECONDS_TOTAL}{_SELECT})", "{{broker_group}} {{cause}}")],
                 {"unit": "s"})  # fmt: skip
    yield _panel("Controller requests", "timeseries",
                 [(f"sum by (request, code) (rate({names.REQUESTS_TOTAL}[1m]))", "{{request}} {{code}}")],
                 {"unit": "reqps"})  # fmt: skip
    yield from _recovery_panels()


def _recovery_panels() -> Iterator[dict[str, Any]]:
    """What the safety rules did, and what waits for a person."""
    waiting = (
        (names.LOST_SEATS, "every seat lost"),
        (names.EPOCH_JUMP_WAITING, "epoch jump"),
        (names.UNFENCED, "unfenced"),
    )
    yield _panel("Waiting for a person", "state-timeline",
                 [(f"max by (namespace, broker_group) ({name}{_SELECT}) > bool 0", f"{{{{broker_group}}}} {text}")
                  for name, text in waiting],
                 {"mappings": [_mapping((("no", 0, "green"), ("yes", 1, "dark-red")))]})  # fmt: skip
    yield _panel("Members that may be elected cleanly", "timeseries",
                 [(f"max by (namespace, broker_group) ({names.SYNC_STATE_SET_SIZE}{_SELECT})", "{{broker_group}} in the set"),
                  (f"max by (namespace, broker_group) ({names.ELIGIBLE_SIZE}{_SELECT})", "{{broker_group}} eligible")])  # fmt: skip
    # The record counts unclean elections, so every operator pod shows the same number; the others are each pod's own.
    recoveries = (
        (f"max by (namespace, broker_group) ({names.UNCLEAN_ELECTIONS_TOTAL}{_SELECT})", "unclean elections"),
        (f"sum by (namespace, broker_group) ({names.SEATS_LOST_TOTAL}{_SELECT})", "seats lost"),
        (f"sum by (namespace, broker_group) ({names.EPOCH_FLOOR_RAISED_TOTAL}{_SELECT})", "records found behind"),
        (f"sum by (namespace, broker_group) ({names.BROKERS_ADOPTED_TOTAL}{_SELECT})", "brokers adopted"),
    )
    yield _panel("Recoveries", "timeseries", [(query, f"{{{{broker_group}}}} {text}") for query, text in recoveries])
    refused = f'sum by (request, code) (rate({names.REQUESTS_TOTAL}{{code!="SUCCESS"}}[5m]))'
    yield _panel("Refused controller requests", "timeseries",
                 [(f"{refused} or vector(0)", "{{request}} {{code}}")],
                 {"unit": "reqps"})  # fmt: skip


def _panel(
    title: str, kind: str, queries: Sequence[tuple[str, str]], defaults: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "title": title,
        "type": kind,
        "datasource": _datasource(),
        "fieldConfig": {"defaults": defaults or {}, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if kind == "bargauge" else {},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": _datasource()}
            for index, (expression, legend) in enumerate(queries)
        ],
    }


def _place(panel: dict[str, Any], index: int) -> dict[str, Any]:
    row, column = divmod(index, _PER_ROW)
    width = 24 // _PER_ROW
    return {"id": index + 1, "gridPos": {"x": column * width, "y": row * _HEIGHT, "w": width, "h": _HEIGHT}, **panel}


def _variables() -> list[dict[str, Any]]:
    source = {"type": "datasource", "name": "datasource", "query": "prometheus", "label": "Data source"}
    return [source, _variable("namespace", ""), _variable("broker_group", '{namespace=~"$namespace"}')]


def _variable(label: str, selector: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": label,
        "datasource": _datasource(),
        "query": f"label_values({names.MASTER_EPOCH}{selector}, {label})",
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _datasource() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${datasource}"}


def _on_off() -> dict[str, Any]:
    return {"mappings": [_mapping((("no master", 0, "dark-red"), ("writable", 1, "green")))]}


def _mapping(values: Sequence[tuple[str, int, str]]) -> dict[str, Any]:
    options = {str(value): {"text": text, "color": color, "index": value} for text, value, color in values}
    return {"type": "value", "options": options}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the dashboard, or with `--check` answer 1 when the file differs from what would be written."""
    parser = argparse.ArgumentParser(description="Write dashboards/ from the metric names.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 on a difference")
    check = parser.parse_args(arguments).check
    text = json.dumps(dashboard(), indent=2) + "\n"
    if not check:
        _PATH.write_text(text)
        return 0
    if _PATH.exists() and _PATH.read_text() == text:
        return 0
    sys.stderr.write(f"{_PATH} differs from its source: run `make generate`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
