"""`kubectl brokergroup report`: a group's objects, Events and logs in one archive, without secrets.

Secrets are never read. Redaction takes secrets out of everything else: environment values, broker configuration, JVM arguments,
annotations, log lines. Names are kept. A broker proves its id by its register check code, so that is a secret too.
"""

import io
import os
import re
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokergroup_operator.api import names
from brokergroup_operator.api.secret_names import SECRET_NAME, WORDS
from brokergroup_operator.json_object import JsonObject
from brokergroup_operator.kubectl.command_line import (
    AllNamespaces,
    ForbiddenError,
    NotFoundError,
    OptionalGroupName,
    Place,
    PluginError,
    RefusedError,
    UsageError,
)
from brokergroup_operator.kubectl.operator_pods import operator_pods, plugin_version
from brokergroup_operator.kubectl.printing import as_yaml
from brokergroup_operator.option_groups import with_option_groups

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.cluster import Cluster, Kind

LOG_LINES = 2000
REDACTED = "(redacted)"
# Fields whose names look like a secret's, and that only name or choose one.
HARMLESS = frozenset({"secretKeyRef", "secretRef", "secret", "imagePullSecrets", "credentialsSecretRef",
                      "certificateSecretRef", "automountServiceAccountToken",
                      "serviceAccountToken", "tokenExpirationSeconds"})  # fmt: skip
HARMLESS_TEXTS = frozenset({"secretName"})
DROPPED_METADATA = ("managedFields",)
DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
# key=value, key: value, "key":"value", -Dkey=value in running text, also where a text in JSON holds JSON: \"key\":\"value\".
# Every repetition has a bound: nothing limits what a log holds, and one line of 100 KB must not take minutes.
ASSIGNMENT = re.compile(
    rf"""(?P<key>(?:{WORDS})[\w.-]{{0,64}}\\{{0,8}}["']?\s{{0,8}}[:=]>?\s{{0,8}})"""
    r"""(?P<value>(?P<quote>\\{0,8}["']).{0,4096}?(?<!\\)(?P=quote)|\{[^{}]{0,4096}\}"""
    # A comma or bracket belongs to the value, unless what follows shows that it does not.
    r"""|(?:[^\s,;}\]]|[,;}\]](?=[^\s"'{}\[\],;\\]))+)""",
    re.IGNORECASE,
)
# --password value
OPTION = re.compile(
    rf"(?P<key>(?<![\w-])--?(?:[\w.-]{{0,64}}?)(?:{WORDS})[\w.-]{{0,64}}\s{{1,8}})(?P<value>[^\s-]\S*)", re.IGNORECASE
)
OPTION_ALONE = re.compile(rf"--?[\w.-]{{0,64}}?(?:{WORDS})[\w.-]{{0,64}}", re.IGNORECASE)
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
# user:password@ in an address; the user may be missing.
USER_INFO = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,31}://)[^\s/@:]{0,256}:[^\s/]{1,1024}@")


@with_option_groups
def report(
    group: OptionalGroupName = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The archive; default: brokergroup-report-<time>.tar.gz here")
    ] = None,
    *,
    all_namespaces: AllNamespaces = False,
    broker_logs: Annotated[
        bool, typer.Option("--broker-logs", help="The brokers' logs too, not only the operator's")
    ] = False,
    place: Place,
) -> None:
    """Pack objects, Events and logs of a group, or of all, without secrets, into a tar.gz. Look at it before you send it."""
    cluster = place.cluster()
    target = file or Path(time.strftime("brokergroup-report-%Y%m%d-%H%M%S.tar.gz"))
    collected = list(_everything(cluster, group, everywhere=all_namespaces, broker_logs=broker_logs))
    if group and _is_empty(collected):
        where = "any namespace" if all_namespaces else f"namespace {cluster.namespace}"
        raise NotFoundError(f"brokergroup {group}: neither it nor anything of it was found in {where}")
    try:
        _write_for_owner(target, archive(collected))
    except OSError as error:
        raise UsageError(f"--file {target}: {error.strerror}; expected a file that can be written") from error
    typer.echo(f"{target}: {len(collected)} files")


def _is_empty(collected: list[tuple[str, str]]) -> bool:
    """Whether every list that could be read is empty; of a deleted group, claims and a record may be left."""
    lists = [text for name, text in collected if name.endswith(".yaml") and name != "version.yaml"]
    return bool(lists) and all(text == _yaml([]) for text in lists)


def _write_for_owner(target: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whatever the umask, or an older file of that name, allows."""
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            os.fchmod(file.fileno(), 0o600)
        file.write(content)


def archive(files: list[tuple[str, str]]) -> bytes:
    """Return a tar.gz of (name, text)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files:
            content = text.encode()
            entry = tarfile.TarInfo(f"brokergroup-report/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _everything(
    cluster: "Cluster", group: str | None, *, everywhere: bool, broker_logs: bool
) -> Iterator[tuple[str, str]]:
    from brokergroup_operator.kubectl import cluster as kinds

    problems: list[str] = []
    pods: list[JsonObject] = []
    of_group = f"{names.LABEL_BROKER_GROUP}={group}" if group else names.LABEL_BROKER_GROUP
    by_name = {"fieldSelector": f"metadata.name={group}"} if group else {}
    collections: list[tuple[Kind, dict[str, str]]] = [
        (kinds.BrokerGroup, by_name),
        (kinds.BrokerGroupState, by_name),
        (kinds.BrokerGroupOperation, {}),
        (kinds.Pod, {"labelSelector": of_group}),
        (kinds.PersistentVolumeClaim, {"labelSelector": of_group}),
        (kinds.Event, {}),
    ]
    yield "version.yaml", _yaml(_version(cluster, problems))
    for kind, selectors in collections:
        try:
            items = cluster.list(kind, everywhere=everywhere, **selectors)
        except (ForbiddenError, NotFoundError, RefusedError) as error:
            problems.append(str(error))
            continue
        if kind is kinds.Pod:
            pods = items
        items = [item for item in items if _is_about(item, group)]
        yield f"{kind.endpoint}.yaml", _yaml(items)
    if broker_logs:
        yield from _logs(cluster, pods, problems)
    try:
        yield from _logs(cluster, operator_pods(cluster), problems)
    except (ForbiddenError, RefusedError) as error:
        problems.append(f"the operator's pods: {error}")
    yield "not-collected.txt", "\n".join(problems) + "\n"


def _is_about(item: JsonObject, group: str | None) -> bool:
    """Whether an object belongs to the group; an Event, whether it is about one that does."""
    if group is None:
        return True
    if item["kind"] == "BrokerGroupOperation":
        return bool(item["spec"]["brokerGroupRef"]["name"] == group)
    if item["kind"] != "Event":
        return True
    about = item.get("involvedObject") or {}
    kind, name = about.get("kind"), str(about.get("name", ""))
    # By the exact names of a group's objects: `orders-eu` is another group, not an object of `orders`.
    if kind in ("Pod", "PersistentVolumeClaim"):
        return names.broker_id_of_pod_name(group, name) is not None
    services = (names.members_service_name, names.master_service_name, names.slaves_service_name)
    of_kind = {
        "Service": {of(group) for of in services},
        "ConfigMap": {names.config_map_name(group)},
        "NetworkPolicy": {names.network_policy_name(group)},
    }
    return name in of_kind.get(str(kind), {group})


def _version(cluster: "Cluster", problems: list[str]) -> JsonObject:
    found: JsonObject = {"plugin": plugin_version()}
    try:
        found["kubernetes"] = cluster.raw("/version").get("gitVersion")
    except PluginError as error:
        problems.append(str(error))
    return found


def _logs(cluster: "Cluster", pods: list[JsonObject], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the log of every container; of a restarted one also the log before, which says why it ended."""
    for pod in pods:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        statuses = (pod.get("status") or {}).get("containerStatuses") or []
        restarted = {item["name"] for item in statuses if item.get("restartCount")}
        for container in (str(item["name"]) for item in pod["spec"]["containers"]):
            for previous in (False, True) if container in restarted else (False,):
                try:
                    text = cluster.log(namespace, name, container, lines=LOG_LINES, previous=previous)
                except (ForbiddenError, NotFoundError, RefusedError) as error:
                    problems.append(str(error))
                    continue
                yield f"logs/{namespace}/{name}.{container}{'.previous' if previous else ''}.log", redacted_text(text)


def _yaml(value: Any) -> str:
    return as_yaml(redacted(value))


def redacted_text(text: str) -> str:
    """Return a log line, a message or an argument without secrets."""
    text = PEM.sub(REDACTED, text)
    text = BEARER.sub(lambda match: f"{match[1]} {REDACTED}", text)
    text = USER_INFO.sub(rf"\g<scheme>{REDACTED}@", text)
    for found in (ASSIGNMENT, OPTION):
        text = found.sub(lambda match: f"{match['key']}{REDACTED}", text)
    return text


def redacted(value: Any, *, name: str = "") -> Any:
    """Return a whole object without secrets. `name`: the field that holds the value."""
    harmless = HARMLESS_TEXTS if isinstance(value, str) else HARMLESS
    if name and name not in harmless and SECRET_NAME.search(name) and not isinstance(value, bool):
        return REDACTED if value not in (None, "") else value
    if isinstance(value, dict):
        return _redacted_mapping(value)
    if isinstance(value, list):
        # The value of an option is the next argument.
        options = [isinstance(item, str) and OPTION_ALONE.fullmatch(item) is not None for item in value]
        return [
            REDACTED if isinstance(item, str) and after_option else redacted(item)
            for after_option, item in zip([False, *options], value, strict=False)
        ]
    return redacted_text(value) if isinstance(value, str) else value


def _redacted_mapping(value: dict[str, Any]) -> dict[str, Any]:
    """Judge an environment entry ({name, value}) by the name that it gives its value."""
    kept = {key: item for key, item in value.items() if key not in DROPPED_METADATA + DROPPED_ANNOTATIONS}
    named = kept.get("name")
    if isinstance(named, str) and "value" in kept and SECRET_NAME.search(named):
        kept["value"] = REDACTED
    return {key: redacted(item, name=key) for key, item in kept.items()}
