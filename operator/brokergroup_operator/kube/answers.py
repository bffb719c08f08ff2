"""Read an answer: an API server's, a proxy's in its place, or none. The type of an exception says what its caller may assume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, OutcomeUnknownError, error_from_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.json_object import JsonObject

# Upper bound of an overloaded server's Retry-After.
LONGEST_RETRY_AFTER_SECONDS = 30.0


def refusal(what: str, response: aiohttp.ClientResponse, content: bytes, *, write: bool) -> ApiError:
    """Return the exception for an answer that is no success, with the server's ``Retry-After``."""
    said = error_from_status(what, response.status, decode(content), write=write)
    said.retry_after_seconds = _retry_after_seconds(response.headers.get("Retry-After", ""))
    return said


def json_object(content: bytes, what: str, *, write: bool) -> JsonObject:
    """Return the content of a success. Raise as `no_answer` says if it is no JSON object."""
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise no_answer(what, "JSON", write=write) from error


def kubernetes_object(answer: JsonObject, what: str, *, write: bool) -> JsonObject:
    """Return the same object. Raise as `no_answer` says if it has no metadata, and is no review, which has no name."""
    is_review = "kind" in answer and "metadata" not in answer and isinstance(answer.get("status"), dict)
    if not isinstance(answer.get("metadata"), dict) and not is_review:
        raise no_answer(what, "an object with metadata", write=write)
    return answer


def no_answer(what: str, expected: str, *, write: bool) -> ApiError:
    """Return the exception for a success that is a proxy's page or was cut off: it says nothing about any object."""
    kind = OutcomeUnknownError if write else ApiUnavailableError
    return kind(f"{what}: the answer is no API server's, expected {expected}")


def _retry_after_seconds(text: str) -> float:
    """Return ``Retry-After`` in seconds; 0 for a date, which API servers do not send."""
    return min(float(text), LONGEST_RETRY_AFTER_SECONDS) if text.isascii() and text.isdecimal() else 0.0


def transport_error(what: str, error: aiohttp.ClientError | TimeoutError, *, write: bool) -> ApiError:
    """Return what a request without an answer means: a write may have been done, unless no connection was made."""
    never_sent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    if write and not never_sent:
        return OutcomeUnknownError(f"{what}: {describe(error)}; it may or may not have been done")
    return ApiUnavailableError(f"{what}: {describe(error)}")


def describe(error: Exception) -> str:
    """Return its type, and its text if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def decode(content: bytes) -> dict[str, Any]:
    """Return a refusal or an event of the API, a JSON object. Other text, from a proxy, becomes the message of a ``Status``."""
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {"kind": "Status", "message": content[:500].decode(errors="replace")}


async def lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield each line of a watch that is not empty."""
    # Not the stream's own line reader: it refuses lines longer than its buffer, and one object may be a megabyte.
    rest = b""
    async for chunk in stream.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
