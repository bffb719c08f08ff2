"""Which exception an answer raises: by the status of an API server, or of a load balancer, proxy or page in its place."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from brokergroup_operator.kube import (
    AlreadyExistsError,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    GoneError,
    InvalidError,
    KubernetesApi,
    NotFoundError,
    OutcomeUnknownError,
    WebhookAwayError,
)
from brokergroup_operator.kube.errors import error_from_status, is_away
from brokergroup_operator.kube.resources import CONFIG_MAPS, NETWORK_POLICIES
from brokergroup_operator.page.access import TOKEN_REVIEWS
from brokergroup_operator.records.kubernetes import GroupObjects, KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey, RecordUnavailableError
from tests.kube.serving import serving
from tests.kube.verbs import WRITES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


# ---- the status of an API server


@pytest.mark.parametrize(
    ("status", "reason", "write", "expected"),
    [
        (400, "BadRequest", True, ApiError),
        (403, "Forbidden", True, ApiError),
        (404, "NotFound", False, NotFoundError),
        (409, "AlreadyExists", True, AlreadyExistsError),
        (409, "Conflict", True, ConflictError),
        (410, "Expired", False, GoneError),
        (422, "Invalid", True, InvalidError),
        (429, "TooManyRequests", True, ApiUnavailableError),
        (500, "InternalError", True, OutcomeUnknownError),
        (504, "Timeout", True, OutcomeUnknownError),
        (503, "ServiceUnavailable", False, ApiUnavailableError),
    ],
)
def test_type_of(status: int, reason: str, write: bool, expected: type[ApiError]) -> None:
    error = error_from_status("PUT /x", status, {"reason": reason, "message": "because"}, write=write)
    assert type(error) is expected
    assert error.status == status
    assert "PUT /x" in str(error)
    assert "because" in str(error)


def test_a_write_that_a_webhook_could_not_admit_was_not_done() -> None:
    said = (
        'Internal error occurred: failed calling webhook "policy.example": failed to call webhook: connection refused'
    )
    error = error_from_status("PATCH /x", 500, {"reason": "InternalError", "message": said}, write=True)
    assert type(error) is WebhookAwayError
    assert error.status == 500
    assert not is_away(error)


def test_an_invalid_object_names_its_fields() -> None:
    causes = [{"field": "spec.replicas", "message": "Invalid value: 0: should be at least 1"}]
    error = error_from_status("POST /x", 422, {"reason": "Invalid", "details": {"causes": causes}}, write=True)
    assert isinstance(error, InvalidError)
    assert error.field_messages == ("spec.replicas: Invalid value: 0: should be at least 1",)


def test_a_patch_of_an_object_whose_name_is_anothers_by_now_is_a_conflict() -> None:
    """Kube-apiserver answers a PATCH with 422 where a PUT gets 409: the spec is valid, and no user has to act."""
    causes = [{"field": "metadata.uid", "message": 'Invalid value: "a": field is immutable'}]
    error = error_from_status("PATCH /x", 422, {"reason": "Invalid", "details": {"causes": causes}}, write=True)
    assert type(error) is ConflictError
    assert error.status == 409
    both = [*causes, {"field": "spec.replicas", "message": "Invalid value"}]
    error = error_from_status("PATCH /x", 422, {"reason": "Invalid", "details": {"causes": both}}, write=True)
    assert type(error) is InvalidError


def test_a_field_that_no_schema_declares_is_invalid_whatever_the_status() -> None:
    """Kube-apiserver 1.3x answers a server-side apply of such a field with a bare 500; retries would never end."""
    said = (
        "failed to create typed patch object (shop/bn-1; /v1, Kind=Pod): .spec.imaginary: field not declared in schema"
    )
    error = error_from_status("PATCH /x", 500, {"message": said}, write=True)

    assert type(error) is InvalidError
    assert ".spec.imaginary" in str(error)


# ---- the body of an answer


# What a load balancer, a proxy or a page to log in answers in an API server's place.
PAGE = b"<html><title>Sign in</title></html>"
READS = {
    "get": lambda api: api.get(CONFIG_MAPS, "a", namespace="n"),
    "list": lambda api: api.list(CONFIG_MAPS, namespace="n"),
}


@asynccontextmanager
async def in_front_of(status: int, body: bytes, **headers: str) -> AsyncIterator[tuple[KubernetesApi, list[str]]]:
    """Answer each request with this, and note it."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path}")
        is_page = request.path == "/login"
        return web.Response(status=200 if is_page else status, body=PAGE if is_page else body, headers=headers)

    async with serving(answer) as url, KubernetesApi.from_url(url) as api:
        yield api, asked


NO_ANSWERS = [
    pytest.param(200, PAGE, id="a page"),
    pytest.param(200, b'{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceV', id="cut off"),
    pytest.param(200, b'{"error": "session expired"}', id="another JSON"),
    pytest.param(302, b"", id="a redirect"),
]


@pytest.mark.parametrize(("status", "body"), NO_ANSWERS)
@pytest.mark.parametrize("verb", READS)
async def test_what_is_no_answer_of_an_api_server_is_no_object_and_no_empty_list(
    verb: str, status: int, body: bytes
) -> None:
    """A page with status 200 read as a list without objects: no pod, no claim, no group."""
    async with in_front_of(status, body, Location="/login") as (api, asked):
        with pytest.raises(ApiUnavailableError):
            await READS[verb](api)
        assert len(asked) == 1


@pytest.mark.parametrize(("status", "body"), NO_ANSWERS)
@pytest.mark.parametrize("verb", ["replace", "create", "patch"])
async def test_a_write_that_no_api_server_answers_is_unknown_and_goes_nowhere_else(
    verb: str, status: int, body: bytes
) -> None:
    async with in_front_of(status, body, Location="/login") as (api, asked):
        with pytest.raises(OutcomeUnknownError):
            await WRITES[verb](api)
        assert len(asked) == 1


@pytest.mark.parametrize("body", [b"default backend - 404", b'{"message": "no Route matched with those values"}'])
@pytest.mark.parametrize("verb", READS)
async def test_only_an_api_server_says_that_an_object_or_a_kind_is_not_there(verb: str, body: bytes) -> None:
    async with in_front_of(404, body) as (api, _):
        with pytest.raises(ApiUnavailableError):
            await READS[verb](api)


async def test_an_api_server_says_by_this_page_that_it_does_not_serve_a_kind() -> None:
    async with in_front_of(404, b"404 page not found\n") as (api, _):
        with pytest.raises(ApiUnavailableError):
            await READS["get"](api)
        with pytest.raises(NotFoundError):
            await READS["list"](api)


async def test_a_403_of_a_firewall_shows_no_empty_list() -> None:
    async with in_front_of(403, PAGE) as (api, _):
        with pytest.raises(ApiError):
            await GroupObjects(api).labelled(NETWORK_POLICIES, GroupKey("n", "a"))


@pytest.mark.parametrize("verb", WRITES)
async def test_a_write_to_a_load_balancer_without_a_backend_is_unknown(verb: str) -> None:
    async with in_front_of(404, b"default backend - 404") as (api, _):
        with pytest.raises(OutcomeUnknownError):
            await WRITES[verb](api)


async def test_a_record_is_not_missing_because_a_page_says_so() -> None:
    for status, body in ((404, b"default backend - 404"), (200, PAGE)):
        async with in_front_of(status, body) as (api, _):
            with pytest.raises(RecordUnavailableError):
                await KubernetesRecordStore(api).read(GroupKey("n", "a"), deadline_seconds=0.2)


@pytest.mark.parametrize("event", [b'{"type": "ADDED", "object": null}', b'{"type": "BOOKMARK", "object": []}', PAGE])
async def test_an_event_without_an_object_is_an_error_of_the_watch(event: bytes) -> None:
    """Any other exception would end the reflector for good."""
    async with (
        in_front_of(200, event + b"\n") as (api, _),
        aclosing(api.watch(CONFIG_MAPS, namespace="n", resource_version="1")) as events,
    ):
        with pytest.raises(ApiError):
            await anext(events)


async def test_a_review_needs_no_metadata() -> None:
    """It has no name, and a server may leave empty fields out (`omitzero`)."""
    review = b'{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": {"authenticated": true}}'
    async with in_front_of(201, review) as (api, _):
        assert (await api.create(TOKEN_REVIEWS, {"spec": {"token": "t"}}))["status"] == {"authenticated": True}


async def test_a_watch_that_is_refused_says_when_to_come_again() -> None:
    async with (
        in_front_of(429, b'{"kind": "Status", "message": "busy"}', **{"Retry-After": "7"}) as (api, _),
        aclosing(api.watch(CONFIG_MAPS, namespace="n", resource_version="1")) as events,
    ):
        with pytest.raises(ApiUnavailableError) as refused:
            await anext(events)
    assert refused.value.retry_after_seconds == 7.0
