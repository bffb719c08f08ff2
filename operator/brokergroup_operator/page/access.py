"""Which users may see the page.

Three ways, chosen when the operator starts:

``open``        no token; only where the page listens on a loopback address, and only under a loopback's name (a page of
                elsewhere that points its own name here, DNS rebinding, is refused). `kubectl port-forward` reaches it, and needs
                the right to forward to the operator's pods.
``token``       a user with the token of a file (a mounted Secret) sees everything.
``kubernetes``  a Kubernetes token: the API names its user (TokenReview) and says whether that user may list BrokerGroups
                (SubjectAccessReview), in the whole cluster or in single namespaces; only those are shown.

A browser gives its token once and has a session cookie from then on. Sessions live in memory, and each is asked about again
after ``RECHECK_SECONDS``: a token that was revoked shows nothing after that (`test_a_revoked_token_ends_its_session`).
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import BROKER_GROUPS, Resource
from rocketmq_remoting.address import is_ip, plain_host

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from brokergroup_operator.kube.client import KubernetesApi

RECHECK_SECONDS: Final = 60.0
SESSION_SECONDS: Final = 12 * 3600.0
MOST_SESSIONS: Final = 1000
LONGEST_TOKEN: Final = 16_384
# So many tokens are asked about at one time, and a wrong one is answered so late.
CHECKS_AT_ONCE: Final = 4
WRONG_TOKEN_SECONDS: Final = 0.5
MOST_NAMESPACES_ASKED: Final = 100
API_SECONDS: Final = 5.0

TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)


class AccessMode(StrEnum):
    """What the page asks of a viewer."""

    OPEN = "open"
    TOKEN = "token"  # noqa: S105 - a mode
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user of the page. ``namespaces`` are those whose groups it shows to the user; None: all."""

    name: str
    namespaces: frozenset[str] | None = None

    def may_see(self, namespace: str) -> bool:
        """Whether the viewer may see groups of this namespace."""
        return self.namespaces is None or namespace in self.namespaces


class TokenCheck(Protocol):
    """Finds the viewer of a token."""

    async def viewer(self, token: str) -> Viewer | None:
        """Return None for a token without access. Raise ``ApiError`` where the API server can't be asked."""
        ...


class TokenFile:
    """The token of a file. Read each time, so that a Secret that was changed counts at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def viewer(self, token: str) -> Viewer | None:
        """Everything, or nothing."""
        wanted = (await asyncio.to_thread(self._path.read_text, encoding="utf-8")).strip()
        if wanted and hmac.compare_digest(token.encode(), wanted.encode()):
            return Viewer("the token's holder")
        return None


class KubernetesTokens:
    """Asks the API server. ``namespaces_of_groups`` are those that are worth asking about one by one."""

    def __init__(
        self, api: KubernetesApi, served_namespace: str | None, namespaces_of_groups: Callable[[], frozenset[str]]
    ) -> None:
        self._api = api
        self._served_namespace = served_namespace
        self._namespaces_of_groups = namespaces_of_groups

    async def viewer(self, token: str) -> Viewer | None:
        """Return the token's user, with the namespaces that the user may list."""
        review = await self._ask(TOKEN_REVIEWS, {"token": token})
        if not review.get("authenticated"):
            return None
        user = review.get("user") or {}
        name = str(user.get("username", ""))
        if await self._may_list(user, self._served_namespace):
            return Viewer(name)
        if self._served_namespace is not None:
            return Viewer(name, frozenset())
        asked = sorted(self._namespaces_of_groups())[:MOST_NAMESPACES_ASKED]
        allowed = [namespace for namespace in asked if await self._may_list(user, namespace)]
        return Viewer(name, frozenset(allowed))

    async def _may_list(self, user: dict[str, Any], namespace: str | None) -> bool:
        attributes = {"verb": "list", "group": BROKER_GROUPS.group, "resource": BROKER_GROUPS.plural}
        if namespace is not None:
            attributes["namespace"] = namespace
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "resourceAttributes": attributes,
        }
        return bool((await self._ask(ACCESS_REVIEWS, spec)).get("allowed"))

    async def _ask(self, resource: Resource, spec: dict[str, Any]) -> dict[str, Any]:
        review = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        answer = await self._api.create(resource, review, timeout_seconds=API_SECONDS)
        status: dict[str, Any] = answer.get("status") or {}
        return status


@dataclass(slots=True)
class _Session:
    token: str
    viewer: Viewer
    checked_at_seconds: float
    ends_at_seconds: float


class Sessions:
    """Logs viewers in by a token, and recognizes them by their cookie."""

    def __init__(self, check: TokenCheck) -> None:
        self._check = check
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._at_once = asyncio.Semaphore(CHECKS_AT_ONCE)

    async def log_in(self, token: str) -> tuple[str, Viewer] | None:
        """The new session's id and its viewer; None, after a while, for a token that opens nothing."""
        viewer = await self.viewer_of_token(token)
        if viewer is None:
            await asyncio.sleep(WRONG_TOKEN_SECONDS)
            return None
        now_seconds = time.monotonic()
        session_id = secrets.token_urlsafe(32)
        self._sessions[session_id] = _Session(token, viewer, now_seconds, now_seconds + SESSION_SECONDS)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session_id, viewer

    def log_out(self, session_id: str) -> None:
        """Forget it."""
        self._sessions.pop(session_id, None)

    async def viewer_of_session(self, session_id: str) -> Viewer | None:
        """Return the session's viewer; check the token again from time to time. None where the session has ended."""
        session = self._sessions.get(session_id)
        now_seconds = time.monotonic()
        if session is None or now_seconds >= session.ends_at_seconds:
            self._sessions.pop(session_id, None)
            return None
        if now_seconds - session.checked_at_seconds >= RECHECK_SECONDS:
            viewer = await self.viewer_of_token(session.token)
            if viewer is None:
                self.log_out(session_id)
                return None
            session.viewer, session.checked_at_seconds = viewer, now_seconds
        return session.viewer

    async def viewer_of_token(self, token: str) -> Viewer | None:
        """Return the token's viewer; None also where the API server can't be asked now: an unchecked token opens nothing."""
        if not token or len(token) > LONGEST_TOKEN or not token.isprintable():
            return None
        async with self._at_once:
            try:
                viewer = await self._check.viewer(token)
            except (ApiError, OSError):
                return None
        return viewer if viewer is not None and viewer.namespaces != frozenset() else None


def is_loopback_host(host: str) -> bool:
    """Whether a listen address, or the name in a Host header without its port, can only be this machine."""
    if host == "localhost":
        return True
    plain = plain_host(host)
    return is_ip(plain) and ipaddress.ip_address(plain).is_loopback


def host_of(header: str) -> str:
    """The name in a Host header, without the port."""
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.rpartition(":")[0] if ":" in header else header
