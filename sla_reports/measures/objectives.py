"""Which objective each group has: from OpenSLO files, and from `spec.slo` of BrokerGroups as `kubectl get -o yaml` writes them.

An OpenSLO document (openslo/v1, kind SLO) is ours if its annotation `brokergroup.dev/groups` names its groups, as
namespace/cluster/brokerGroup with `*` and `?` (docs/tasks/sla.md). Other kinds, and SLOs without the annotation, are passed over.
An objective that names one group wins over patterns. Two that say different things of a group are an error.
"""

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from sla_reports.measures.periods import PeriodError, window_holding, window_of, zone_of
from sla_reports.states.entities import GroupKey
from sla_reports.states.spans import Window

ANNOTATION = "brokergroup.dev/groups"
# Of an OpenSLO document and of a BrokerGroup: page one names the owner.
OWNER_ANNOTATION = "brokergroup.dev/owner"
DEFAULT_WINDOW = "30d"
_ROLLING = re.compile(r"([1-9]\d{0,3})([dw])")
# A calendar window by OpenSLO's unit: our word for it, and about how many days it has.
_CALENDAR = {"d": ("day", 1), "w": ("week", 7), "M": ("month", 30), "Q": ("quarter", 91), "Y": ("year", 365)}
_SUFFIXES = (".yaml", ".yml", ".json")


class ObjectiveError(ValueError):
    """An objective that can't be used; says where and what was expected."""


@dataclass(frozen=True, slots=True)
class BudgetWindow:
    """The time over which a budget is spent: rolling days, or the calendar's unit (day, week, month, quarter, year) in a zone."""

    days: int
    unit: str = ""
    time_zone: str = "UTC"

    def __str__(self) -> str:
        return f"calendar {self.unit} ({self.time_zone})" if self.unit else f"rolling {self.days} days"

    def ending(self, end_ms: int) -> Window:
        """Return the rolling days up to this instant, or the whole calendar unit that holds the last millisecond before it."""
        if self.unit:
            return window_holding(end_ms - 1, self.unit, self.time_zone)
        return window_of(f"{self.days}d", self.time_zone, end_ms=end_ms)


@dataclass(frozen=True, slots=True)
class Objective:
    """What was promised to groups: `share` of the time they take writes."""

    name: str
    groups: str
    share: float
    window: BudgetWindow
    service: str = ""
    owner: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether it names one group."""
        return not set("*?") & set(self.groups)

    def is_about(self, group: GroupKey) -> bool:
        return self._covers(str(group))

    def is_pattern_of(self, other: "Objective") -> bool:
        """Whether this one is by pattern, and the other one names a group that the pattern is about."""
        return not self.is_exact and other.is_exact and self._covers(other.groups)

    def _covers(self, group: str) -> bool:
        # A bracket is a character of a name here, as in the annotation's own description.
        return fnmatchcase(group, self.groups.replace("[", "[[]"))


def objective_of(group: GroupKey, objectives: Sequence[Objective]) -> Objective | None:
    """Return the objective of a group; None if no objective names it. Raises ObjectiveError if two differ."""
    about = [one for one in objectives if one.is_about(group)]
    about = [one for one in about if one.is_exact] or about
    if len({(one.share, one.window) for one in about}) > 1:
        told = ", ".join(f"{one.name} says {one.share * 100:g} % over {one.window}" for one in about)
        raise ObjectiveError(f"objectives of {group}: {told}; expected one")
    return about[0] if about else None


def reading_window(period: Window, objectives: Iterable[Objective], *, until_ms: int | None = None) -> Window:
    """Return the time to read: the period, and the objectives' own windows as of the period's end."""
    end_ms = period.end_ms if until_ms is None else min(until_ms, period.end_ms)
    starts = [one.window.ending(end_ms).start_ms for one in objectives]
    return Window(min([period.start_ms, *starts]), period.end_ms)


def read_objectives(paths: Iterable[Path]) -> list[Objective]:
    """Read the objectives of files, and of the YAML and JSON files in folders, in order. Raises ObjectiveError if there is none."""
    paths = list(paths)
    found = [
        one
        for path in paths
        for file in (sorted(one for one in path.iterdir() if one.suffix in _SUFFIXES) if path.is_dir() else [path])
        for one in _of_file(file)
    ]
    if not found:
        raise ObjectiveError(
            f"objectives {', '.join(map(str, paths))}: none; expected an OpenSLO document of kind SLO with the annotation"
            f" {ANNOTATION}, or a BrokerGroup with spec.slo"
        )
    names = [one.name for one in found]
    _refuse_twice(names)
    return found


def merged_objectives(objectives: Iterable[Objective]) -> list[Objective]:
    """Merge the objectives of several sources: equal ones count once. Raises ObjectiveError if two of one name differ."""
    found = list(dict.fromkeys(objectives))
    _refuse_twice([one.name for one in found])
    return found


def _refuse_twice(names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ObjectiveError(f"objectives: {twice[0]} stands twice; expected each name once")


def _of_file(path: Path) -> Iterator[Objective]:
    try:
        documents = list(yaml.load_all(path.read_bytes(), Loader=yaml.BaseLoader))
    except OSError as error:
        raise ObjectiveError(f"objectives {path}: {error.strerror}; expected a file that can be read") from error
    except yaml.YAMLError as error:
        raise ObjectiveError(f"objectives {path}: not YAML ({error})") from error
    for document in filter(lambda one: isinstance(one, dict), documents):
        items = document.get("items")
        # The document itself, or the items of a List.
        for one in filter(lambda one: isinstance(one, dict), items if isinstance(items, list) else [document]):
            where = f"objectives {path}: {one.get('kind')} {_map(one, 'metadata').get('name')}"
            if (told := objective_of_document(one, where)) is not None:
                yield told


def objective_of_document(document: Mapping[str, Any], where: str) -> Objective | None:
    """Read an OpenSLO document that names its groups, or a BrokerGroup; None if it is neither, or has no objective.

    Raises ObjectiveError, which begins with `where`.
    """
    annotations, slo = _map(_map(document, "metadata"), "annotations"), _map(_map(document, "spec"), "slo")
    if document.get("kind") == "SLO" and ANNOTATION in annotations:
        return _open_slo(document, where)
    if document.get("kind") == "BrokerGroup" and "availabilityPercent" in slo:
        return _broker_group(document, where)
    return None


def _map(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _open_slo(document: Mapping[str, Any], where: str) -> Objective:
    if document.get("apiVersion") != "openslo/v1":
        raise ObjectiveError(f"{where}: apiVersion {document.get('apiVersion')!r}; expected openslo/v1")
    spec, groups = _map(document, "spec"), _map(document["metadata"], "annotations")[ANNOTATION]
    if str(groups).count("/") != 2:
        raise ObjectiveError(f"{where}: {ANNOTATION} {groups!r}; expected namespace/cluster/brokerGroup")
    promised = spec.get("objectives")
    if not isinstance(promised, list) or len(promised) != 1 or not isinstance(promised[0], dict):
        raise ObjectiveError(
            f"{where}: spec.objectives: expected a list of one objective, with target or targetPercent"
        )
    if "target" in promised[0]:
        share = _share(promised[0]["target"], 1, f"{where}: spec.objectives[0].target")
    else:
        share = _share(promised[0].get("targetPercent"), 100, f"{where}: spec.objectives[0].targetPercent")
    window = _window(spec.get("timeWindow"), f"{where}: spec.timeWindow")
    owner = str(_map(document["metadata"], "annotations").get(OWNER_ANNOTATION, ""))
    return Objective(document["metadata"]["name"], groups, share, window, str(spec.get("service", "")), owner)


def _broker_group(document: Mapping[str, Any], where: str) -> Objective:
    metadata, spec = document["metadata"], document["spec"]
    name, namespace = metadata.get("name"), metadata.get("namespace", "default")
    key = f"{namespace}/{spec.get('brokerClusterName', 'DefaultCluster')}/{spec.get('brokerName', name)}"
    share = _share(spec["slo"].get("availabilityPercent"), 100, f"{where}: spec.slo.availabilityPercent")
    zone = spec["slo"].get("timeZone", "UTC")
    _known_zone(zone, f"{where}: spec.slo.timeZone")
    window: dict[str, Any] = {"duration": spec["slo"].get("window", DEFAULT_WINDOW)}
    if window["duration"] in {"1w", "1M", "1Q", "1Y"}:
        window |= {"isRolling": "false", "calendar": {"timeZone": zone}}
    owner = str(_map(metadata, "annotations").get(OWNER_ANNOTATION, ""))
    return Objective(f"{namespace}/{name}", key, share, _window([window], f"{where}: spec.slo.window"), owner=owner)


def _share(value: Any, whole: int, where: str) -> float:
    try:
        share = Decimal(value) / whole
    except (InvalidOperation, TypeError):
        share = Decimal(0)
    if not Decimal("0.01") < share < 1:
        raise ObjectiveError(f"{where}: {value!r}; expected {'99.95' if whole == 100 else '0.9995'}, below {whole}")
    return float(share)


def _window(value: Any, where: str) -> BudgetWindow:
    if value is None:
        value = [{"duration": DEFAULT_WINDOW}]
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], dict):
        raise ObjectiveError(f"{where}: expected a list of one window, as [{{duration: 30d, isRolling: true}}]")
    duration, calendar = str(value[0].get("duration")), _map(value[0], "calendar")
    if value[0].get("isRolling", "true") == "true" and not calendar:
        if not (told := _ROLLING.fullmatch(duration)):
            raise ObjectiveError(f"{where}: rolling {duration!r}; expected days or weeks, as 30d or 4w")
        return BudgetWindow(int(told[1]) * (7 if told[2] == "w" else 1))
    if duration[:1] != "1" or duration[1:] not in _CALENDAR:
        raise ObjectiveError(f"{where}: calendar {duration!r}; expected one of 1d, 1w, 1M, 1Q, 1Y")
    unit, days = _CALENDAR[duration[1:]]
    zone = calendar.get("timeZone", "UTC")
    _known_zone(zone, where)
    if "startTime" in calendar and not _begins(unit, calendar["startTime"]):
        raise ObjectiveError(f"{where}: startTime {calendar['startTime']!r}; expected the first instant of a {unit}")
    return BudgetWindow(days, unit, zone)


def _known_zone(name: str, where: str) -> None:
    try:
        zone_of(name)
    except PeriodError as error:
        raise ObjectiveError(f"{where}: {error}") from error


def _begins(unit: str, start_time: str) -> bool:
    try:
        at = dt.datetime.fromisoformat(start_time)
    except ValueError:
        return False
    first = {
        "day": True, "week": at.weekday() == 0, "month": at.day == 1,
        "quarter": at.day == 1 and at.month % 3 == 1, "year": (at.month, at.day) == (1, 1),
    }  # fmt: skip
    return at.time() == dt.time() and first[unit]
