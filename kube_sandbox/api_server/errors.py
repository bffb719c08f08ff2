"""Every refusal of the API, as an exception that has its Status object.

Messages and details are shaped like kube-apiserver's (k8s.io/apimachinery/pkg/api/errors and util/validation/field), because
clients match on them: kopf on the code, the official client on `reason`. kubectl prints `message` unchanged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kube_sandbox.api_server.values import JsonObject

_CAUSE_REASONS = {
    "Required value": "FieldValueRequired",
    "Invalid value": "FieldValueInvalid",
    "Unsupported value": "FieldValueNotSupported",
    "Duplicate value": "FieldValueDuplicate",
    "Not found": "FieldValueNotFound",
    "Forbidden": "FieldValueForbidden",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
    "Type invalid": "FieldValueTypeInvalid",
}


def _rendered(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class FieldError:
    """One complaint about one field; `kind` is the text that Kubernetes prints before the value."""

    field: str
    kind: str
    detail: str

    @property
    def message(self) -> str:
        shown = "Invalid value" if self.kind == "Type invalid" else self.kind
        return f"{shown}: {self.detail}" if self.detail else shown

    def to_cause(self) -> JsonObject:
        return {"reason": _CAUSE_REASONS[self.kind], "message": self.message, "field": self.field or "<nil>"}

    def __str__(self) -> str:
        return f"{self.field or '<nil>'}: {self.message}"


def required(field: str, detail: str = "") -> FieldError:
    return FieldError(field, "Required value", detail)


def invalid(field: str, value: Any, detail: str) -> FieldError:
    return FieldError(field, "Invalid value", f"{_rendered(value)}: {detail}")


def type_invalid(field: str, shown: str, detail: str) -> FieldError:
    return FieldError(field, "Type invalid", f"{_rendered(shown)}: {detail}")


def unsupported(field: str, value: Any, supported: Sequence[Any]) -> FieldError:
    listed = ", ".join(_rendered(item) for item in supported)
    return FieldError(field, "Unsupported value", f"{_rendered(value)}: supported values: {listed}")


def duplicate(field: str, value: Any) -> FieldError:
    return FieldError(field, "Duplicate value", _rendered(value))


def forbidden_field(field: str, detail: str) -> FieldError:
    return FieldError(field, "Forbidden", detail)


@dataclass(frozen=True)
class GroupResource:
    """The name of a resource in an error: `pods`, or `things.example.dev`."""

    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def details(self, name: str) -> JsonObject:
        details: JsonObject = {"name": name} if name else {}
        if self.group:
            details["group"] = self.group
        details["kind"] = self.resource
        return details


class StatusError(Exception):
    """A refused request; the HTTP layer answers with `to_status()`."""

    def __init__(self, code: int, reason: str, message: str, details: JsonObject | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def to_status(self) -> JsonObject:
        status: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status |= {"message": self.message, "code": self.code}
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        return status


def not_found(what: GroupResource, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{what} "{name}" not found', what.details(name))


class NoSuchPathError(Exception):
    """A path that is not served: answered in plain text, without a Status, as kube-apiserver does."""


def already_exists(what: GroupResource, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{what} "{name}" already exists', what.details(name))


def conflict(what: GroupResource, name: str, why: str) -> StatusError:
    return StatusError(409, "Conflict", f'Operation cannot be fulfilled on {what} "{name}": {why}', what.details(name))


def invalid_object(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """Return 422 with one cause per field, worded as by `field.ErrorList.ToAggregate`."""
    what = GroupResource(group, kind)
    texts = list(dict.fromkeys(str(error) for error in errors))
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details = what.details(name) | {"causes": [error.to_cause() for error in errors]}
    return StatusError(422, "Invalid", f'{what} "{name}" is invalid: {listed}', details)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def too_old(requested: int, oldest: int) -> StatusError:
    return StatusError(410, "Expired", f"too old resource version: {requested} ({oldest})")


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, {})


def unsupported_media_type(content_type: str, accepted: Sequence[str]) -> StatusError:
    message = (
        f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
        f" (got {content_type!r})"
    )
    return StatusError(415, "UnsupportedMediaType", message)
