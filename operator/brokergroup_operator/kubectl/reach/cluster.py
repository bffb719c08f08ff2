"""The API server as the plugin speaks to it: over pykube's HTTP client, every refusal as one line with an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import requests
from pykube.http import HTTPClient

from brokergroup_operator.kubectl.errors import CannotConnectError, ForbiddenError, NotFoundError, RefusedError
from brokergroup_operator.kubectl.reach import kubeconfig

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from pathlib import Path

    from brokergroup_operator.kubectl.reach.kinds import Kind

JsonObject = dict[str, Any]
JsonObjects = list[JsonObject]

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
        self.namespace = namespace or str(config.namespace)

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> JsonObject:
        """One object."""
        place = namespace or self.namespace
        return self._ask("GET", kind.path(place, name), what=f"{kind.plural} {place}/{name}")

    def list(self, kind: Kind, *, everywhere: bool = False, **selectors: str) -> list[JsonObject]:
        """Objects of the namespace, or of all; `labelSelector` and `fieldSelector` as the API spells them."""
        path = kind.path(None if everywhere else self.namespace)
        answer = self._ask("GET", path, what=kind.plural, parameters=selectors)
        return [{"apiVersion": kind.api_version, "kind": kind.name, **item} for item in answer.get("items") or []]

    def create(self, kind: Kind, obj: JsonObject) -> JsonObject:
        """A field that the kind does not have is refused, not dropped."""
        metadata = obj["metadata"]
        what = f"{kind.plural} {self.namespace}/{metadata.get('name') or metadata.get('generateName', '')}"
        return self._ask("POST", kind.path(self.namespace), what=what, parameters=STRICT, body=obj)

    def patch(self, kind: Kind, name: str, patch: JsonObject) -> JsonObject:
        """A merge patch."""
        what = f"{kind.plural} {self.namespace}/{name}"
        return self._ask("PATCH", kind.path(self.namespace, name), what=what, parameters=STRICT, body=patch)

    def raw(self, path: str) -> JsonObject:
        """GET any path that answers with an object, like /version."""
        return self._ask("GET", path, what=path)

    def log(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        """The end of a container's log, or of the one it had before its last restart."""
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        parameters = {"container": container, "tailLines": str(lines)} | ({"previous": "true"} if previous else {})
        response = self._send("GET", path, parameters=parameters)
        if response.status_code >= 400:
            raise _refusal(f"{'previous ' if previous else ''}log of {container} in pod {namespace}/{pod}", response)
        return response.text

    def follow(self, kind: Kind, name: str) -> Iterator[JsonObject | None]:
        """The object now and after every change; None once it is deleted. For ever: the caller stops."""
        while True:
            obj = self.get(kind, name)
            yield obj
            parameters = {
                "watch": "true",
                "fieldSelector": f"metadata.name={name}",
                "resourceVersion": str(obj["metadata"]["resourceVersion"]),
                "timeoutSeconds": str(WATCH_SECONDS),
            }
            for event in self._watch(kind.path(self.namespace), parameters):
                if event.get("type") == "ERROR":
                    break  # too old: read again
                yield None if event.get("type") == "DELETED" else event["object"]

    def follow_all(self, kind: Kind, *, everywhere: bool, quiet_seconds: int = WATCH_SECONDS) -> Generator[JsonObjects]:
        """All objects of the namespace, or of all, now, after every change and after so much quiet. For ever: the caller stops."""
        path = kind.path(None if everywhere else self.namespace)
        while True:
            listed = self._ask("GET", path, what=kind.plural)
            found = {_key(item): item for item in listed.get("items") or []}
            version: str | None = str(listed["metadata"]["resourceVersion"])
            while version is not None:
                yield [*found.values()]
                parameters = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(quiet_seconds)}
                for event in self._watch(path, parameters):
                    if event.get("type") == "ERROR":
                        version = None  # too old: read again
                        break
                    version = str(event["object"]["metadata"]["resourceVersion"])
                    if event.get("type") == "DELETED":
                        found.pop(_key(event["object"]), None)
                    else:
                        found[_key(event["object"])] = event["object"]
                    yield [*found.values()]

    def _watch(self, path: str, parameters: Mapping[str, str]) -> Iterator[JsonObject]:
        import json

        with self._send("GET", path, parameters=parameters, stream=True) as response:
            if response.status_code >= 400:
                raise _refusal(path, response)
            try:
                for line in response.iter_lines():
                    if line:
                        yield json.loads(line)
            except requests.RequestException:
                return  # broken off: read again

    def _ask(
        self,
        method: str,
        path: str,
        *,
        what: str,
        parameters: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
    ) -> JsonObject:
        response = self._send(method, path, parameters=parameters, body=body)
        if response.status_code >= 400:
            raise _refusal(what, response)
        answer: JsonObject = response.json()
        return answer

    def _send(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        stream: bool = False,
    ) -> requests.Response:
        headers = {"Content-Type": MERGE_PATCH} if method == "PATCH" else None
        try:
            return self._client.session.request(
                method,
                self._client.url.rstrip("/") + path,
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
    """requests wraps urllib3 wraps the socket's error; the last one says it shortest."""
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    reason = getattr(error, "reason", None)
    return str(reason if isinstance(reason, BaseException) else error)
