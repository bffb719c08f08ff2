"""The API server as the plugin reaches it: pykube's object classes and HTTP client, every refusal one line with an exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

import requests
from pykube.http import HTTPClient
from pykube.objects import Event, NamespacedAPIObject, PersistentVolumeClaim, Pod

from brokergroup_operator.api import names
from brokergroup_operator.json_object import JsonObject
from brokergroup_operator.kubectl import kubeconfig
from brokergroup_operator.kubectl.command_line import CannotConnectError, ForbiddenError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from pathlib import Path

__all__ = [
    "BrokerGroup", "BrokerGroupOperation", "BrokerGroupState", "Cluster", "Event", "Lease", "PersistentVolumeClaim", "Pod",
]  # fmt: skip
JsonObjects = list[JsonObject]


class Kind(Protocol):
    """One of pykube's classes, or of the ones below: where objects of a kind live."""

    version: str
    endpoint: str
    kind: str


class BrokerGroup(NamespacedAPIObject):
    version, endpoint, kind = names.API_VERSION, "brokergroups", names.BROKER_GROUP_KIND


class BrokerGroupState(NamespacedAPIObject):
    version, endpoint, kind = names.API_VERSION, "brokergroupstates", "BrokerGroupState"


class BrokerGroupOperation(NamespacedAPIObject):
    version, endpoint, kind = names.API_VERSION, "brokergroupoperations", "BrokerGroupOperation"


class Lease(NamespacedAPIObject):
    version, endpoint, kind = "coordination.k8s.io/v1", "leases", "Lease"


TIMEOUT_SECONDS = 10.0
# The server ends a watch after this long, and we ask for another.
WATCH_SECONDS = 300
FIELD_MANAGER = "kubectl-brokergroup"
STRICT = {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER}
MERGE_PATCH = "application/merge-patch+json"


class Cluster:
    """One context of a kubeconfig."""

    def __init__(self, path: Path | None = None, context: str | None = None, namespace: str | None = None) -> None:
        config = kubeconfig.load(path, context)
        self._client = HTTPClient(config, timeout=TIMEOUT_SECONDS)
        self._client.url = self._client.url.rstrip("/")
        self.namespace = namespace or str(config.namespace)

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> JsonObject:
        """Return one object."""
        place = namespace or self.namespace
        return self._ask("GET", self._url(kind, place, name), what=f"{kind.endpoint} {place}/{name}")

    def group(self, name: str) -> JsonObject:
        """Return one BrokerGroup."""
        return self.get(BrokerGroup, name)

    def list(self, kind: Kind, *, everywhere: bool = False, **selectors: str) -> JsonObjects:
        """Return the objects of the namespace, or of all; `labelSelector` and `fieldSelector` as the API spells them."""
        url = self._url(kind, None if everywhere else self.namespace)
        answer = self._ask("GET", url, what=kind.endpoint, parameters=selectors)
        return [{"apiVersion": kind.version, "kind": kind.kind, **item} for item in answer.get("items") or []]

    def groups(self, *, everywhere: bool = False) -> JsonObjects:
        """Return the BrokerGroups of the namespace, or of all."""
        return self.list(BrokerGroup, everywhere=everywhere)

    def create(self, operation: JsonObject) -> JsonObject:
        """Create a BrokerGroupOperation; a field that the kind does not have is refused, not dropped."""
        kind = BrokerGroupOperation
        what = f"{kind.endpoint} {self.namespace}/{operation['metadata']['generateName']}"
        return self._ask("POST", self._url(kind, self.namespace), what=what, parameters=STRICT, body=operation)

    def patch(self, kind: Kind, name: str, patch: JsonObject, *, dry_run: bool = False) -> JsonObject:
        """Apply a merge patch; `dry_run`: only ask whether the API server would take it."""
        what = f"{kind.endpoint} {self.namespace}/{name}"
        parameters = {**STRICT, "dryRun": "All"} if dry_run else STRICT
        return self._ask("PATCH", self._url(kind, self.namespace, name), what=what, parameters=parameters, body=patch)

    def raw(self, path: str) -> JsonObject:
        """GET a path that answers with an object, like /version."""
        return self._ask("GET", f"{self._client.url}{path}", what=path)

    def log(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        """Return the end of a container's log, or of the log before its last restart."""
        parameters = {"container": container, "tailLines": str(lines)} | ({"previous": "true"} if previous else {})
        response = self._send("GET", f"{self._url(Pod, namespace, pod)}/log", parameters=parameters)
        if response.status_code >= 400:
            raise _refusal(f"{'previous ' if previous else ''}log of {container} in pod {namespace}/{pod}", response)
        return response.text

    def follow(self, name: str) -> Iterator[JsonObject | None]:
        """Yield the group now and after every change, None once it is deleted. Endless: the caller stops."""
        while True:
            obj = self.group(name)
            yield obj
            parameters = {
                "watch": "true",
                "fieldSelector": f"metadata.name={name}",
                "resourceVersion": str(obj["metadata"]["resourceVersion"]),
                "timeoutSeconds": str(WATCH_SECONDS),
            }
            for event in self._watch(self._url(BrokerGroup, self.namespace), parameters):
                if event.get("type") == "ERROR":
                    break  # too old: read again
                yield None if event.get("type") == "DELETED" else event["object"]

    def follow_all(self, *, everywhere: bool, quiet_seconds: int = WATCH_SECONDS) -> Generator[JsonObjects]:
        """Yield all groups now, after every change, and after `quiet_seconds` without one. Endless: the caller stops."""
        url = self._url(BrokerGroup, None if everywhere else self.namespace)
        while True:
            listed = self._ask("GET", url, what=BrokerGroup.endpoint)
            found = {_key(item): item for item in listed.get("items") or []}
            version: str | None = str(listed["metadata"]["resourceVersion"])
            while version is not None:
                yield [*found.values()]
                parameters = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(quiet_seconds)}
                for event in self._watch(url, parameters):
                    if event.get("type") == "ERROR":
                        version = None  # too old: read again
                        break
                    version = str(event["object"]["metadata"]["resourceVersion"])
                    if event.get("type") == "DELETED":
                        found.pop(_key(event["object"]), None)
                    else:
                        found[_key(event["object"])] = event["object"]
                    yield [*found.values()]

    def _url(self, kind: Kind, namespace: str | None, name: str = "") -> str:
        """Return the URL of one object, or of a collection. Names from a command line are quoted: none leads to another object."""
        url = f"{kind.endpoint}/{quote(name, safe='')}" if name else kind.endpoint
        place = None if namespace is None else quote(namespace, safe="")
        return str(self._client.get_kwargs(version=kind.version, namespace=place, url=url)["url"])

    def _watch(self, url: str, parameters: Mapping[str, str]) -> Iterator[JsonObject]:
        with self._send("GET", url, parameters=parameters, stream=True) as response:
            if response.status_code >= 400:
                raise _refusal(url, response)
            try:
                for line in response.iter_lines():
                    if line:
                        yield json.loads(line)
            except requests.RequestException:
                return  # broken off: read again

    def _ask(
        self,
        method: str,
        url: str,
        *,
        what: str,
        parameters: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
    ) -> JsonObject:
        response = self._send(method, url, parameters=parameters, body=body)
        if response.status_code >= 400:
            raise _refusal(what, response)
        answer: JsonObject = response.json()
        return answer

    def _send(
        self,
        method: str,
        url: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        stream: bool = False,
    ) -> requests.Response:
        headers = {"Content-Type": MERGE_PATCH} if method == "PATCH" else None
        try:
            return self._client.session.request(
                method,
                url,
                params=parameters,
                json=body,
                headers=headers,
                stream=stream,
                timeout=(TIMEOUT_SECONDS, WATCH_SECONDS + TIMEOUT_SECONDS if stream else TIMEOUT_SECONDS),
            )
        except requests.RequestException as error:
            raise CannotConnectError(f"cannot reach {self._client.url}: {_innermost(error)}") from error


def _key(obj: JsonObject) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _refusal(what: str, response: requests.Response) -> Exception:
    try:
        status: JsonObject = response.json()
    except ValueError:
        status = {"message": response.text[:300].strip()}
    message = str(status.get("message") or response.reason)
    if response.status_code == 404:
        if not status.get("details", {}).get("name"):
            return NotFoundError(f"{what}: the cluster does not know this kind, or the object is not there: {message}")
        return NotFoundError(f"{what}: not found")
    if response.status_code in (401, 403):
        return ForbiddenError(f"{what}: {message}")
    return RefusedError(f"{what}: {message}")


def _innermost(error: BaseException) -> str:
    """Return the socket's own words: requests wraps urllib3's error, which wraps the socket's."""
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    reason = getattr(error, "reason", None)
    return str(reason if isinstance(reason, BaseException) else error)
