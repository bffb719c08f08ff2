"""What the Kubernetes API refuses, one type for each thing that a kubelet does about it."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """The API refused, or could not be asked. ``status`` is the HTTP status, None where none was received."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(ApiError):
    """404: no such object."""


class AlreadyExistsError(ApiError):
    """409 on create."""


class ConflictError(ApiError):
    """409 on anything else: it changed since it was read."""


class GoneError(ApiError):
    """410: the resourceVersion to watch from is too old; list again."""


class ApiUnavailableError(ApiError):
    """Nothing was done: ask again."""


class OutcomeUnknownError(ApiError):
    """A write that may or may not have been done."""


def error_of(what: str, http_status: int, answer: dict[str, Any], *, write: bool) -> ApiError:
    """The error of a ``Status`` object; ``what`` names the request."""
    reason = answer.get("reason", "")
    message = f"{what}: {http_status} {reason}: {answer.get('message', 'no message')}"
    if http_status >= 500:
        return (OutcomeUnknownError if write else ApiUnavailableError)(message, status=http_status)
    causes = (answer.get("details") or {}).get("causes") or []
    if http_status == 422 and causes and all(cause.get("field") == "metadata.uid" for cause in causes):
        return ConflictError(message, status=http_status)  # the name is another object's by now
    kinds: dict[int, type[ApiError]] = {404: NotFoundError, 410: GoneError, 429: ApiUnavailableError}
    kinds[409] = AlreadyExistsError if reason == "AlreadyExists" else ConflictError
    return kinds.get(http_status, ApiError)(message, status=http_status)
