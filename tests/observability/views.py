"""One change of master in seven views: the same id, the same time, the same milliseconds for every step.

A failover's status is in the group, a switchover's in its operation, which ends before the steps that come after the master.
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
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from brokergroup_operator.api.names import ANNOTATION_INCIDENT
from brokergroup_operator.observe.timeline import Kind
from metric_names import LAST_INCIDENT_STEP_SECONDS, LAST_INCIDENT_TIMESTAMP_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

GROUP, NAMESPACE = "quickstart", "default"
# Spark alone needs most of it on a busy machine.
COMMAND_SECONDS = 900
# The steps that each must have; a frozen master is fenced, a killed one is already dead.
_ALL = {
    "detected",
    "decided",
    "committed",
    "notified",
    "roleChanged",
    "indexCaughtUp",
    "routeVisible",
    "inSync",
    "firstAck",
}
STEPS = {Kind.FAILOVER: _ALL | {"fenced"}, Kind.SWITCHOVER: _ALL}


@dataclass(frozen=True)
class Telling:
    """A view's values of one failover; None if the view does not have a value."""

    id: str
    milliseconds: int
    started_at_ms: int | None = None
    to: int | None = None
    # Whole milliseconds since the detection, by step.
    steps: dict[str, int] | None = None
    # Told when the master served: later steps are not in it.
    so_far: bool = False

    def agrees_with(self, truth: Telling) -> bool:
        pairs = ((self.started_at_ms, truth.started_at_ms), (self.to, truth.to))
        same = all(None in pair or pair[0] == pair[1] for pair in pairs)
        return same and (self.id, self.milliseconds) == (truth.id, truth.milliseconds) and self._same_steps(truth)

    def _same_steps(self, truth: Telling) -> bool:
        if self.steps is None or truth.steps is None:
            return True
        return self.steps == ({step: truth.steps.get(step) for step in self.steps} if self.so_far else truth.steps)


@dataclass(frozen=True)
class Places:
    """Where the views of one running demo are."""

    directory: Path
    endpoints: dict[str, str]
    page: str

    def __hash__(self) -> int:
        return hash(self.directory)


def incident_log(places: Places, kind: Kind) -> Telling:
    """The latest one of this kind in the log: what the others are compared with. An AssertionError where it lacks a step."""
    lines = [json.loads(line) for line in (places.directory / "incidents.jsonl").read_text().splitlines()]
    last = [one for one in lines if one["kind"] == kind and one["outcome"] == "completed"][-1]
    steps = whole(last["stepsMilliseconds"])
    assert steps.keys() >= STEPS[kind], f"{last['id']} lacks {STEPS[kind] - steps.keys()}"
    return Telling(last["id"], round(last["durationMilliseconds"]), _unix_ms(last["startedAt"]), last["to"], steps)


def whole(steps: dict[str, float]) -> dict[str, int]:
    return {step: round(value) for step, value in steps.items()}


def page(places: Places, incident: str, _: Kind) -> Telling:
    query = urllib.parse.urlencode({"group": f"{NAMESPACE}/{GROUP}"})
    with urllib.request.urlopen(f"{places.page}api/events?{query}", timeout=30) as stream:
        for line in stream:
            if line == b"event: group\n":
                told = json.loads(next(stream).removeprefix(b"data: "))
                for one in told["incidents"]:
                    if one["id"] == incident:
                        took, steps = round(one["durationMilliseconds"]), whole(one["steps"])
                        steps["firstAck"] = _on_the_demos_panel(places, incident)
                        return Telling(one["id"], took, one["startedAt"], one["to"], steps)
                raise AssertionError(f"the page does not tell {incident}: {[one['id'] for one in told['incidents']]}")
    raise AssertionError("the page's stream ended without the group")


def _on_the_demos_panel(places: Places, incident: str) -> int:
    """The page of the demo tells it twice: as a step, and beside its buttons. A KeyError where the panel does not."""
    with urllib.request.urlopen(f"{places.page}demo/state", timeout=30) as answer:
        first: dict[str, float] = json.load(answer)["firstAcknowledged"]
    return round(first[incident])


def status(places: Places, incident: str, kind: Kind) -> Telling:
    if kind is Kind.SWITCHOVER:
        [result] = [one["status"]["result"] for one in _operations(places) if _is_of(one["status"]["result"], incident)]
        told = Telling(incident, result["milliseconds"], None, result["toBrokerId"], result["phases"])
        return replace(told, so_far=True)
    group = json.loads(_kubectl(places, "get", "brokergroup", GROUP, "-n", NAMESPACE, "-o", "json"))
    [one] = [one for one in group["status"]["failovers"] if one["id"] == incident]
    return Telling(one["id"], one["durationMilliseconds"], _unix_ms(one["startedAt"]), one["to"], one["phases"])


def event(places: Places, incident: str, kind: Kind) -> Telling:
    events = json.loads(_kubectl(places, "get", "events", "-n", NAMESPACE, "-o", "json"))["items"]
    [one] = [one for one in events if (one["metadata"].get("annotations") or {}).get(ANNOTATION_INCIDENT) == incident]
    assert one["reason"] == f"{kind.value.capitalize()}Completed", one
    words = one["message"].replace(",", "").split()  # from broker 1 to 2, epoch 7, 97 ms
    return Telling(incident, int(words[-2]), None, int(words[words.index("to") + 1]))


def metric(places: Places, incident: str, _: Kind) -> Telling:
    with urllib.request.urlopen(f"http://{places.endpoints['metrics']}/metrics", timeout=30) as answer:
        families = {one.name: one.samples for one in text_string_to_metric_families(answer.read().decode())}
    [at] = [one.value for one in families[LAST_INCIDENT_TIMESTAMP_SECONDS] if one.labels["incident"] == incident]
    steps = {
        one.labels["step"]: round(one.value * 1000)
        for one in families[LAST_INCIDENT_STEP_SECONDS]
        if one.labels["incident"] == incident
    }
    return Telling(incident, steps["roleChanged"], round(at * 1000), None, steps)


def history(places: Places, incident: str, kind: Kind) -> Telling:
    told = _run(
        "-m", "brokergroup_operator.kubectl.main", "history", GROUP, "-n", NAMESPACE, "-o", "json",
        "--kubeconfig", places.endpoints["kubeconfig"],
    )  # fmt: skip
    found = json.loads(told)
    entries = found["items"] if isinstance(found, dict) else found
    if kind is Kind.SWITCHOVER:  # by its operation, which began with the request
        [one] = [one for one in entries if one["what"] == "Switchover" and _is_of(one, incident)]
        return Telling(incident, one["milliseconds"], None, one["to"])
    [one] = [one for one in entries if one["incident"] == incident]
    return Telling(one["incident"], one["milliseconds"], _unix_ms(one["time"]), one["to"])


def report(places: Places, incident: str, _: Kind) -> Telling:
    """Spark's report of the demo's own scrapes and its incident log."""
    lines = [json.loads(line) for path in _report(places).rglob("incidents.jsonl") for line in path.open()]
    [one] = [one for one in lines if one["id"] == incident]
    return Telling(one["id"], round(one["stepsMs"]["roleChanged"]), one["startedAtMs"], None, whole(one["stepsMs"]))


@cache
def _report(places: Places) -> Path:
    """One report for both changes of master: it is made when the last one is in the log."""
    out = places.directory / "report"
    _run(
        "-m", "brokergroup_operator.cli.main", "sla", "report", "--out", str(out),
        "--prometheus-export", str(places.directory / "prometheus.json"),
        "--incidents", str(places.directory / "incidents.jsonl"),
    )  # fmt: skip
    return out


View = Callable[[Places, str, Kind], Telling]
QUICK_VIEWS: dict[str, View] = {
    "page": page,
    "status": status,
    "Event": event,
    "metric": metric,
    "history": history,
}
UNTOLD = (AssertionError, LookupError, ValueError, OSError, subprocess.SubprocessError)


def is_told(places: Places, kind: Kind) -> bool:
    """Whether each quick view shows the latest change of this kind, correct or not."""
    with contextlib.suppress(*UNTOLD):
        incident = incident_log(places, kind).id
        return all(view(places, incident, kind) for view in QUICK_VIEWS.values())
    return False


def differing(places: Places, truth: Telling, kind: Kind, views: dict[str, View]) -> dict[str, str]:
    """Return each view's differences from the incident log."""
    differ = {}
    for name, view in views.items():
        try:
            told = view(places, truth.id, kind)
        except UNTOLD as error:
            differ[name] = f"{name}: {error!r}"
        else:
            if not told.agrees_with(truth):
                differ[name] = f"{name}: {told}, not {truth}"
    return differ


def switch_over(places: Places) -> None:
    """Switch over by the plugin, which waits for the end."""
    _run(
        "-m", "brokergroup_operator.kubectl.main", "switchover", GROUP, "-n", NAMESPACE, "--wait",
        "--kubeconfig", places.endpoints["kubeconfig"],
    )  # fmt: skip


def _operations(places: Places) -> list[dict[str, Any]]:
    found = json.loads(_kubectl(places, "get", "brokergroupoperations", "-n", NAMESPACE, "-o", "json"))["items"]
    return [one for one in found if one.get("status", {}).get("result")]


def _is_of(result: dict[str, Any], incident: str) -> bool:
    """Whether an operation's result is of this change of master: its id ends with the epoch."""
    return incident == f"{NAMESPACE}/{GROUP}/{result.get('epoch')}"


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
