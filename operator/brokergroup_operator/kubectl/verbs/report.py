"""`kubectl brokergroup report`: what somebody needs who is to help, in one redacted archive."""

import io
import os
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokergroup_operator.api import names
from brokergroup_operator.kubectl import options
from brokergroup_operator.kubectl.errors import ForbiddenError, NotFoundError, PluginError, RefusedError, UsageError

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.reach.cluster import Cluster

JsonObject = dict[str, Any]
LOG_LINES = 2000


def report(
    group: options.OptionalGroupName = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The archive; default: brokergroup-report-<time>.tar.gz here")
    ] = None,
    *,
    all_namespaces: options.AllNamespaces = False,
    broker_logs: Annotated[
        bool, typer.Option("--broker-logs", help="The brokers' logs too, not only the operator's")
    ] = False,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Pack what helps a helper, without secrets, into a tar.gz. Look at it before you send it."""
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    cluster = Cluster(kubeconfig, context, namespace)
    target = file or Path(time.strftime("brokergroup-report-%Y%m%d-%H%M%S.tar.gz"))
    collected = list(_everything(cluster, group, everywhere=all_namespaces, broker_logs=broker_logs))
    if group and _is_empty(collected):
        place = "any namespace" if all_namespaces else f"namespace {cluster.namespace}"
        raise NotFoundError(f"brokergroup {group}: neither it nor anything of it was found in {place}")
    try:
        _write_for_owner(target, archive(collected))
    except OSError as error:
        raise UsageError(f"--file {target}: {error.strerror}; expected a file that can be written") from error
    typer.echo(f"{target}: {len(collected)} files")


def _is_empty(collected: list[tuple[str, str]]) -> bool:
    """Whether everything that could be listed is empty lists; of a deleted group there may still be claims and a record."""
    lists = [text for name, text in collected if name.endswith(".yaml") and name != "version.yaml"]
    return bool(lists) and all(text == _yaml([]) for text in lists)


def _write_for_owner(target: Path, content: bytes) -> None:
    """Nobody else may read it, also where the umask or an older file of that name would let them."""
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            os.fchmod(file.fileno(), 0o600)
        file.write(content)


def archive(files: list[tuple[str, str]]) -> bytes:
    """A tar.gz of (name, text). Pure but for the time stamp."""
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
    from brokergroup_operator.kubectl.reach import kinds

    problems: list[str] = []
    pods: list[JsonObject] = []
    of_group = f"{names.LABEL_BROKER_GROUP}={group}" if group else names.LABEL_BROKER_GROUP
    collections: list[tuple[kinds.Kind, dict[str, str]]] = [
        (kinds.BROKER_GROUPS, {"fieldSelector": f"metadata.name={group}"} if group else {}),
        (kinds.BROKER_GROUP_STATES, {"fieldSelector": f"metadata.name={group}"} if group else {}),
        (kinds.BROKER_GROUP_OPERATIONS, {}),
        (kinds.PODS, {"labelSelector": of_group}),
        (kinds.PERSISTENT_VOLUME_CLAIMS, {"labelSelector": of_group}),
        (kinds.EVENTS, {}),
    ]
    yield "version.yaml", _yaml(_version(cluster, problems))
    for kind, selectors in collections:
        try:
            items = cluster.list(kind, everywhere=everywhere, **selectors)
        except (ForbiddenError, NotFoundError, RefusedError) as error:
            problems.append(str(error))
            continue
        if kind is kinds.PODS:
            pods = items
        items = [item for item in items if _is_about(item, group)]
        yield f"{kind.plural}.yaml", _yaml(items)
    if broker_logs:
        yield from _logs(cluster, pods, problems)
    yield from _logs(cluster, _operator_pods(cluster, problems), problems)
    yield "not-collected.txt", "\n".join(problems) + "\n"


def _is_about(item: JsonObject, group: str | None) -> bool:
    """An Event, or an operation, of this group or of its pods."""
    if group is None:
        return True
    if item["kind"] == "BrokerGroupOperation":
        return bool(item["spec"]["brokerGroupRef"]["name"] == group)
    if item["kind"] != "Event":
        return True
    about = item.get("involvedObject") or {}
    return _is_of_group(str(about.get("kind", "")), str(about.get("name", "")), group)


def _is_of_group(kind: str, name: str, group: str) -> bool:
    """Exactly, by the names that its objects have: `orders-eu` is another group, not something of `orders`."""
    if kind in ("Pod", "PersistentVolumeClaim"):
        return names.broker_id_of_pod_name(group, name) is not None
    if kind in ("Service", "ConfigMap"):
        services = (names.members_service_name(group), names.master_service_name(group))
        return name in (*services, names.config_map_name(group))
    return name == group


def _version(cluster: "Cluster", problems: list[str]) -> JsonObject:
    from brokergroup_operator.kubectl.verbs.version import plugin_version

    found: JsonObject = {"plugin": plugin_version()}
    try:
        found["kubernetes"] = cluster.raw("/version").get("gitVersion")
    except PluginError as error:
        problems.append(str(error))
    return found


def _operator_pods(cluster: "Cluster", problems: list[str]) -> list[JsonObject]:
    from brokergroup_operator.kubectl.reach.operator_pods import operator_pods

    try:
        return operator_pods(cluster)
    except (ForbiddenError, RefusedError) as error:
        problems.append(f"the operator's pods: {error}")
        return []


def _logs(cluster: "Cluster", pods: list[JsonObject], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Of every container; and of one that was restarted, what it said before it ended: there the reason stands."""
    from brokergroup_operator.kubectl.show.redaction import redacted_text

    for pod, container, previous in _containers(pods):
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        try:
            text = cluster.log(namespace, name, container, lines=LOG_LINES, previous=previous)
        except (ForbiddenError, NotFoundError, RefusedError) as error:
            problems.append(str(error))
            continue
        yield f"logs/{namespace}/{name}.{container}{'.previous' if previous else ''}.log", redacted_text(text)


def _containers(pods: list[JsonObject]) -> Iterator[tuple[JsonObject, str, bool]]:
    for pod in pods:
        statuses = (pod.get("status") or {}).get("containerStatuses") or []
        restarted = {item["name"] for item in statuses if item.get("restartCount")}
        for container in (str(item["name"]) for item in pod["spec"]["containers"]):
            yield pod, container, False
            if container in restarted:
                yield pod, container, True


def _yaml(value: Any) -> str:
    from brokergroup_operator.kubectl.show.printing import as_yaml
    from brokergroup_operator.kubectl.show.redaction import redacted

    return as_yaml(redacted(value))
