"""One failover, told by seven views: the same id, the same moment, the same milliseconds.

Each view is read the way its users read it: the page over its stream, the status and the Event from the API, the metric from
`/metrics`, the incident log from its file, `history` by the plugin, the report by Spark.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import subprocess
import sys
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from brokergroup_operator.api.names import ANNOTATION_INCIDENT
from metric_names import LAST_INCIDENT_STEP_SECONDS, LAST_INCIDENT_TIMESTAMP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GROUP, NAMESPACE = "quickstart", "default"
# Spark alone needs most of it on a busy machine.
COMMAND_SECONDS = 900


@dataclass(frozen=True)
class Telling:
    """What a view says of one failover; None where it does not say that at all."""

    id: str
    milliseconds: int
    started_at_ms: int | None = None
    to: int | None = None

    def agrees_with(self, other: Telling) -> bool:
        pairs = ((self.started_at_ms, other.started_at_ms), (self.to, other.to))
        same = all(None in pair or pair[0] == pair[1] for pair in pairs)
        return same and (self.id, self.milliseconds) == (other.id, other.milliseconds)


@dataclass(frozen=True)
class Places:
    """Where the views of one running demo are."""

    directory: Path
    endpoints: dict[str, str]
    page: str


def incident_log(places: Places) -> Telling:
    """The latest failover in the log: what the others are compared with."""
    lines = [json.loads(line) for line in (places.directory / "incidents.jsonl").read_text().splitlines()]
    last = [one for one in lines if one["kind"] == "failover" and one["outcome"] == "completed"][-1]
    return Telling(last["id"], round(last["durationMilliseconds"]), _unix_ms(last["startedAt"]), last["to"])


def page(places: Places, incident: str) -> Telling:
    query = urllib.parse.urlencode({"group": f"{NAMESPACE}/{GROUP}"})
    with urllib.request.urlopen(f"{places.page}api/events?{query}", timeout=30) as stream:
        for line in stream:
            if line == b"event: group\n":
                told = json.loads(next(stream).removeprefix(b"data: "))
                for one in told["incidents"]:
                    if one["id"] == incident:
                        return Telling(one["id"], round(one["durationMilliseconds"]), one["startedAt"], one["to"])
                raise AssertionError(f"the page does not tell {incident}: {[one['id'] for one in told['incidents']]}")
    raise AssertionError("the page's stream ended without the group")


def status(places: Places, incident: str) -> Telling:
    group = json.loads(_kubectl(places, "get", "brokergroup", GROUP, "-n", NAMESPACE, "-o", "json"))
    [one] = [one for one in group["status"]["failovers"] if one["id"] == incident]
    return Telling(one["id"], one["durationMilliseconds"], _unix_ms(one["startedAt"]), one["to"])


def event(places: Places, incident: str) -> Telling:
    events = json.loads(_kubectl(places, "get", "events", "-n", NAMESPACE, "-o", "json"))["items"]
    [one] = [one for one in events if (one["metadata"].get("annotations") or {}).get(ANNOTATION_INCIDENT) == incident]
    assert one["reason"] == "FailoverCompleted", one
    words = one["message"].replace(",", "").split()  # from broker 1 to 2, epoch 7, 97 ms
    return Telling(incident, int(words[-2]), None, int(words[words.index("to") + 1]))


def metric(places: Places, incident: str) -> Telling:
    with urllib.request.urlopen(f"http://{places.endpoints['metrics']}/metrics", timeout=30) as answer:
        families = {one.name: one.samples for one in text_string_to_metric_families(answer.read().decode())}
    [at] = [one.value for one in families[LAST_INCIDENT_TIMESTAMP_SECONDS] if one.labels["incident"] == incident]
    [took] = [
        one.value
        for one in families[LAST_INCIDENT_STEP_SECONDS]
        if (one.labels["incident"], one.labels["step"]) == (incident, "roleChanged")
    ]
    return Telling(incident, round(took * 1000), round(at * 1000))


def history(places: Places, incident: str) -> Telling:
    told = _run(
        "-m", "brokergroup_operator.kubectl.main", "history", GROUP, "-n", NAMESPACE, "-o", "json",
        "--kubeconfig", places.endpoints["kubeconfig"],
    )  # fmt: skip
    found = json.loads(told)
    entries = found["items"] if isinstance(found, dict) else found
    [one] = [one for one in entries if one["incident"] == incident]
    return Telling(one["incident"], one["milliseconds"], _unix_ms(one["time"]), one["to"])


def report(places: Places, incident: str) -> Telling:
    """Spark's report of the demo's own scrapes and its incident log."""
    out = places.directory / "report"
    _run(
        "-m", "brokergroup_operator.cli.main", "sla", "report", "--out", str(out),
        "--prometheus-export", str(places.directory / "prometheus.json"),
        "--incidents", str(places.directory / "incidents.jsonl"),
    )  # fmt: skip
    lines = [json.loads(line) for path in out.rglob("incidents.jsonl") for line in path.read_text().splitlines()]
    [one] = [one for one in lines if one["id"] == incident]
    return Telling(one["id"], round(one["stepsMs"]["roleChanged"]), one["startedAtMs"])


QUICK_VIEWS: dict[str, Callable[[Places, str], Telling]] = {
    "page": page,
    "status": status,
    "Event": event,
    "metric": metric,
    "history": history,
}
VIEWS = {**QUICK_VIEWS, "report": report}
UNTOLD = (AssertionError, KeyError, ValueError, OSError, subprocess.SubprocessError)


def is_told(places: Places) -> bool:
    """Whether each view but the report tells of the latest failover, whatever it says."""
    with contextlib.suppress(*UNTOLD):
        incident = incident_log(places).id
        return all(view(places, incident) for view in QUICK_VIEWS.values())
    return False


def agreeing(places: Places) -> tuple[list[str], list[str]]:
    """The views that agree with the incident log, itself the first, and what the others say."""
    truth = incident_log(places)
    agree, differ = ["incident log"], []
    for name, view in VIEWS.items():
        try:
            told = view(places, truth.id)
        except UNTOLD as error:
            differ.append(f"{name}: {error!r}")
            continue
        (agree if told.agrees_with(truth) else differ).append(
            name if told.agrees_with(truth) else f"{name}: {told}, not {truth}"
        )
    return agree, differ


def _kubectl(places: Places, *arguments: str) -> str:
    from tests.real.parts.install import kubernetes_folder

    command = [str(kubernetes_folder() / "kubectl"), "--kubeconfig", places.endpoints["kubeconfig"], *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMMAND_SECONDS).stdout


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    if done.returncode:
        raise ValueError(f"{arguments}: {done.stderr[-500:]}")
    return done.stdout


def _unix_ms(text: str) -> int:
    return round(dt.datetime.fromisoformat(text).timestamp() * 1000)
