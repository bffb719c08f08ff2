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
