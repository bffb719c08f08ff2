"""What can go wrong at the Kubernetes API, one exception type per policy of the caller, and the backoff of a retry.

=====================  ===================================================================================
type                   what the caller does
=====================  ===================================================================================
NotFoundError          the object does not exist: create it, or be done
AlreadyExistsError     another writer created it first: read it and go on from there
ConflictError          it changed since it was read, or a precondition failed: re-read, re-validate, recompute
GoneError              the resourceVersion to watch from is too old: list again
InvalidError           the object is wrong; ``field_messages`` name the fields: report it, do not retry
ApiUnavailableError    the request had no effect: safe to retry
WebhookAwayError       the same, of one write: others may be admitted
OutcomeUnknownError    a write that may or may not have happened: re-read until known, never assume
NotLeadingError        the write was not sent: another process may lead by now; stop working
ApiError               everything else (forbidden, bad request): our own mistake, or missing permissions
=====================  ===================================================================================
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


# A kube-apiserver 1.3x answers a server-side apply of a field that no schema declares with a bare 500, as if nothing could be
# said. It never becomes right by asking again: it is what 422 is for.
UNDECLARED_FIELD: Final = "field not declared in schema"


# In the message of a bare 500: an admission webhook did not answer the API server.
WEBHOOK_AWAY: Final = "failed calling webhook"


class ApiError(Exception):
    """The API server refused a request or was not reachable. ``status`` is the HTTP status, None if none was received.

    ``retry_after_seconds`` is the ``Retry-After`` of a 429 or 503, 0 without one.
    """

    retry_after_seconds: float = 0.0

    def __init__(self, message: str, *, status: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFoundError(ApiError):
    """404: no such object, in an API server's own words. Of a collection: no such kind."""


class AlreadyExistsError(ApiError):
    """409 on create: an object of that name exists."""


class ConflictError(ApiError):
    """409 on anything else: resourceVersion, uid precondition, or another field manager's field."""


class GoneError(ApiError):
    """410: the requested resourceVersion has been compacted away."""


class InvalidError(ApiError):
    """422: the object breaks its kind's schema or rules."""

    def __init__(self, message: str, *, field_messages: tuple[str, ...] = (), reason: str = "Invalid") -> None:
        super().__init__(message, status=422, reason=reason)
        self.field_messages = field_messages


class ApiUnavailableError(ApiError):
    """The request had no effect: a failed read, a connection never made, or the server asks for a later retry."""


class WebhookAwayError(ApiUnavailableError):
    """500: the write was not done, as the webhook that must admit it can't be called. Writes of other kinds may need no webhook."""


class NotLeadingError(ApiUnavailableError):
    """A write that was not sent, because this process may no longer write."""


class OutcomeUnknownError(ApiError):
    """A write was sent, and its outcome is unknown (timeout, lost connection, 5xx, an answer that is no API server's)."""


def is_away(error: ApiError) -> bool:
    """Whether the API server did not answer, or asks for a later retry: the next request would fail too."""
    return isinstance(error, ApiUnavailableError | OutcomeUnknownError) and not isinstance(error, WebhookAwayError)


def is_forbidden(error: ApiError) -> bool:
    """Whether an API server says that the role lacks a right, and not a firewall's page. What follows depends on the right."""
    return error.status == 403 and error.reason == "Forbidden"


def error_from_status(what: str, http_status: int, status_object: dict[str, Any], *, write: bool) -> ApiError:
    """Return the exception for a ``Status`` object; its type is the caller's policy. ``what`` names the request."""
    reason, said = str(status_object.get("reason", "")), str(status_object.get("message", "no message"))
    message = f"{what}: {http_status} {reason}: {said}"
    if http_status == 422 and _is_another_object(status_object):
        return ConflictError(message, status=409, reason="Conflict")
    if http_status == 422 or (http_status == 500 and UNDECLARED_FIELD in said):
        return InvalidError(message, field_messages=_field_messages(status_object), reason=reason)
    if http_status == 409:
        kind = AlreadyExistsError if reason == "AlreadyExists" else ConflictError
        return kind(message, status=http_status, reason=reason)
    if http_status == 500 and write and WEBHOOK_AWAY in said:
        return WebhookAwayError(message, status=http_status, reason=reason)
    # etcd's timeout and "leader changed" reach us as 500, 503 and 504 after the proposal may have been committed. A redirect, and a
    # 404 without this reason, say nothing about the object: a proxy sent them, or the API server does not serve the kind.
    if http_status >= 500 or http_status < 400 or (http_status == 404 and reason != "NotFound"):
        outcome = OutcomeUnknownError if write else ApiUnavailableError
        return outcome(message, status=http_status, reason=reason)
    by_status: dict[int, type[ApiError]] = {404: NotFoundError, 410: GoneError, 429: ApiUnavailableError}
    return by_status.get(http_status, ApiError)(message, status=http_status, reason=reason)


def _is_another_object(status_object: dict[str, Any]) -> bool:
    """Whether a PATCH with a uid met another object of that name. A PUT gets a conflict then."""
    causes = (status_object.get("details") or {}).get("causes") or []
    return bool(causes) and all(cause.get("field") == "metadata.uid" for cause in causes)


def _field_messages(status_object: dict[str, Any]) -> tuple[str, ...]:
    details = status_object.get("details") or {}
    causes = details.get("causes") or []
    return tuple(f"{cause.get('field', '')}: {cause.get('message', '')}" for cause in causes)


# Operator pods that lost the API at the same moment must not retry at the same moment.
LEAST_SHARE_OF_PAUSE = 0.5


def _jitter() -> float:
    return random.uniform(LEAST_SHARE_OF_PAUSE, 1.0)  # noqa: S311 (jitter, not a secret)


class Backoff:
    """Pauses between the retries of one caller, doubling, with jitter. Call `reset` after a success."""

    def __init__(self, first_seconds: float, longest_seconds: float, *, jitter: Callable[[], float] = _jitter) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._jitter = jitter
        self._whole_seconds = first_seconds

    def next_seconds(self, retry_after_seconds: float = 0.0) -> float:
        """Return the next pause, at least the server's `retry_after_seconds` (429, 503); the one after it is twice as long."""
        pause_seconds = self._whole_seconds * self._jitter()
        self._whole_seconds = min(2 * self._whole_seconds, self._longest_seconds)
        return max(pause_seconds, retry_after_seconds)

    def reset(self) -> None:
        """Start again with the first pause."""
        self._whole_seconds = self._first_seconds
