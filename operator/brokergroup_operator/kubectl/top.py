"""`kubectl brokergroup top`: all groups, worst first as the live page sorts them, from the API alone."""

import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import typer

from brokergroup_operator.json_object import JsonObject
from brokergroup_operator.kubectl.command_line import AllNamespaces, Place
from brokergroup_operator.kubectl.printing import age, aged, columns, in_units, show_all
from brokergroup_operator.kubectl.status import condition, last_failover
from brokergroup_operator.option_groups import with_option_groups

HEADER = ("", "GROUP", "STATE", "MASTER", "EPOCH", "IN-SYNC", "LAG", "LAST-FAILOVER", "TOOK", "WHY")
# Worst first: the conditions that make a group so, and the status that they have then.
_NO_WRITES = ("✖", "no writes")
_UNKNOWN = ("?", "not looked at")
_RULES = (
    (("☾", "hibernated"), ("Hibernated",), "True"),
    (_NO_WRITES, ("Available",), "False"),
    (
        ("!", "needs a person"),
        (
            *("Unfenced", "EpochJump", "SeatLost", "Stalled", "CredentialsMissing", "ClaimTerminating"),
            *("ClientCertificateEnding", "ObjectiveInvalid"),
        ),
        "True",
    ),
    (("▲", "not safe to lose a member"), ("FailoverSafe",), "False"),
    (
        ("◔", "under way"),
        (
            *("Recovering", "MetadataDiverged", "Reconciling", "Paused", "DegradedDurability", "ConfigurationDrifted"),
            *("Fenced", "TlsChanging", "VolumeResizing", "BrokersStopped"),
        ),
        "True",
    ),
)
_WELL = ("●", "well")
_ORDER = (_NO_WRITES, _UNKNOWN, _RULES[2][0], _RULES[3][0], _RULES[4][0], _WELL, _RULES[0][0])


@with_option_groups
def top(
    *,
    all_namespaces: AllNamespaces = False,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end")] = False,
    place: Place,
) -> None:
    """All groups, worst first, drawn again after every change until Ctrl-C."""

    def render(groups: list[JsonObject]) -> str:
        if not sys.stdout.isatty():
            return top_page(groups, everywhere=all_namespaces)
        size = shutil.get_terminal_size()
        return top_page(groups, everywhere=all_namespaces, rows=size.lines, width=size.columns)

    show_all(place.cluster(), render, everywhere=all_namespaces, watch=not once)


def top_page(
    groups: Iterable[JsonObject], *, everywhere: bool, rows: int | None = None, width: int | None = None
) -> str:
    """Return how many groups are in which state, then a line for each, cut to so many rows and columns."""
    judged = [(standing_of(group), group) for group in groups]
    judged.sort(key=lambda one: (one[0].rank, one[1]["metadata"]["namespace"], one[1]["metadata"]["name"]))
    counts = Counter(standing.word for standing, _ in judged)
    summary = f"{len(judged)} groups" + "".join(f", {counts[word]} {word}" for _, word in _ORDER if counts[word])
    kept = judged if rows is None else judged[: max(1, rows - 3)]
    lines = [summary, *columns(HEADER, [_line(*one, everywhere=everywhere) for one in kept]).splitlines()]
    if len(kept) < len(judged):
        lines.append(f"… and {len(judged) - len(kept)} that stand no worse")
    return "\n".join(line if width is None else line[:width] for line in lines)


@dataclass(frozen=True)
class Standing:
    """A group's state as a sign and a word, and why; the smaller the rank, the worse."""

    rank: int
    sign: str
    word: str
    why: str


def standing_of(group: JsonObject) -> Standing:
    """Return the state by the conditions that the operator wrote last."""
    if not (group.get("status") or {}).get("conditions"):
        return _standing(_UNKNOWN, "no operator has written a status")
    for kind, names, bad in _RULES:
        for name in names:
            found = condition(group, name)
            if found.get("status") == bad:
                return _standing(kind, f"{found['reason']}: {aged(found['message'])}")
    return _standing(_WELL, "")


def _standing(kind: tuple[str, str], why: str) -> Standing:
    return Standing(_ORDER.index(kind), *kind, why)


def _line(standing: Standing, group: JsonObject, *, everywhere: bool) -> list[object]:
    metadata, status = group["metadata"], group.get("status") or {}
    master, last = status.get("master") or {}, last_failover(status)
    return [
        standing.sign,
        f"{metadata['namespace']}/{metadata['name']}" if everywhere else metadata["name"],
        standing.word,
        master.get("brokerId"),
        master.get("epoch"),
        f"{len((status.get('syncStateSet') or {}).get('brokerIds') or [])}/{group['spec'].get('replicas')}",
        in_units(max((member.get("lagBytes") or 0 for member in status.get("members") or []), default=None)),
        age(last.get("startedAt")),
        f"{last['durationMilliseconds']} ms" if last else None,
        standing.why,
    ]
