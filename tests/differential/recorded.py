"""The recorded life of a real group (tests/remoting/recordings) as steps: requests of real brokers and mqadmin.

They are the requests to the controller in order, and the ends of connections that carried heartbeats. Answers are compared
between the two controllers, not with the recording. Addresses are the sequence's own. Epochs that were correct at the time
(a granted request's, a heartbeat's) become relative, since a controller of today may count differently.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from tests.differential.language import Step
from tests.differential.sides import WIRE_NAMES
from tests.remoting import recorded_frames

CODES = frozenset({1001, 1002, 1003, 1004, 1005, 1006, 1010, 1011, 1012, 1013, 904})
WITHOUT_A_GROUP = frozenset({1005, 1006, 1010})
ADDRESS = re.compile(r"127\.\d+\.\d+\.\d+:\d+")
RECORDING = Path(recorded_frames.__file__).parent / "recordings" / "lifecycle.jsonl.gz"


def recorded_steps() -> list[Step]:
    """Return the whole sequence."""
    with gzip.open(RECORDING, "rt", encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    granted = {
        (one["conn"], one["header"]["opaque"]) for one in entries if one.get("dir") == "s2c" and one["code"] == 0
    }
    steps: list[Step] = []
    addresses: dict[str, str] = {}
    carried: dict[int, tuple[str, str, str]] = {}
    for entry in entries:
        if str(entry.get("ev", "")).startswith("closed") and entry.get("conn") in carried:
            name, cluster, broker_id = carried.pop(entry["conn"])
            steps.append(Step.of("close", name=name, cluster=cluster, id=broker_id, conn=f"c{entry['conn']}"))
        elif entry.get("dir") == "c2s" and entry["code"] in CODES and entry["link"] == "ctl":
            fields = entry["header"].get("extFields") or {}
            was_granted = (entry["conn"], entry["header"]["opaque"]) in granted
            step = _step(entry, fields, addresses, was_granted=was_granted)
            if entry["code"] == 904 and "brokerId" in fields:
                step = Step(step.verb, (*step.arguments, ("conn", f"c{entry['conn']}")))
                carried[entry["conn"]] = fields["brokerName"], fields["clusterName"], fields["brokerId"]
            if not any(" " in value for _, value in step.arguments):
                steps.append(step)
    return steps


def _step(entry: dict[str, Any], fields: dict[str, Any], addresses: dict[str, str], *, was_granted: bool) -> Step:
    code, body = entry["code"], entry.get("body")
    verb = "heartbeat" if code == 904 else str(code)
    arguments: dict[str, object] = {}
    if code not in WITHOUT_A_GROUP:
        arguments["name"] = fields.get("brokerName", "null")
    if "clusterName" in fields:
        arguments["cluster"] = fields["clusterName"] or None
    for key, wire_name in WIRE_NAMES.get(verb, {}).items():
        if wire_name in fields and key != "timeout":
            arguments[key] = _canonical(str(fields[wire_name]), addresses)
    if code == 1001 and body:
        value = json.loads(body)
        arguments |= {"set": value["syncStateSet"], "setEpoch": "@" if was_granted else value["syncStateSetEpoch"]}
        arguments |= {"epoch": "@"} if was_granted else {}
    if code == 904 and int(arguments.get("epoch", "-1")) > 0:  # type: ignore[call-overload]
        arguments["epoch"] = "@"
    if code == 1006 and body:
        names = json.loads(body)
        arguments |= {"name": names[0] if names else "bn", "names": names}
    return Step.of(verb, **arguments)


def _canonical(text: str, addresses: dict[str, str]) -> str:
    def renamed(match: re.Match[str]) -> str:
        return addresses.setdefault(match[0], f"10.0.7.{len(addresses) + 1}:10911")

    return ADDRESS.sub(renamed, text)
