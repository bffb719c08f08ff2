"""Each answer of the API becomes the exception whose type says what to do next."""

from __future__ import annotations

import pytest

from brokergroup_operator.kube import (
    AlreadyExistsError,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    GoneError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
)
from brokergroup_operator.kube.errors import error_from_status


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


def test_an_invalid_object_names_its_fields() -> None:
    causes = [{"field": "spec.replicas", "message": "Invalid value: 0: should be at least 1"}]
    error = error_from_status("POST /x", 422, {"reason": "Invalid", "details": {"causes": causes}}, write=True)
    assert isinstance(error, InvalidError)
    assert error.field_messages == ("spec.replicas: Invalid value: 0: should be at least 1",)


def test_a_patch_of_an_object_whose_name_is_anothers_by_now_is_a_conflict() -> None:
    """Kube-apiserver says 422 where a PUT is told 409: no spec is wrong, and nobody has to do anything."""
    causes = [{"field": "metadata.uid", "message": 'Invalid value: "a": field is immutable'}]
    error = error_from_status("PATCH /x", 422, {"reason": "Invalid", "details": {"causes": causes}}, write=True)
    assert type(error) is ConflictError
    assert error.status == 409
    both = [*causes, {"field": "spec.replicas", "message": "Invalid value"}]
    error = error_from_status("PATCH /x", 422, {"reason": "Invalid", "details": {"causes": both}}, write=True)
    assert type(error) is InvalidError


def test_a_field_that_no_schema_declares_is_invalid_whatever_the_status() -> None:
    """Kube-apiserver 1.3x answers a server-side apply of one with a bare 500; asking again would never end."""
    said = (
        "failed to create typed patch object (shop/bn-1; /v1, Kind=Pod): .spec.imaginary: field not declared in schema"
    )
    error = error_from_status("PATCH /x", 500, {"message": said}, write=True)

    assert type(error) is InvalidError
    assert ".spec.imaginary" in str(error)
