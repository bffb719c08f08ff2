"""The API server's verdict on a spec, without a server: the sandbox's own defaults, schema checks and CEL rules."""

from __future__ import annotations

import copy
import functools
import re
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from kube_sandbox.api_server.kinds.custom_resources import custom_resource_types
from tests.fuzz.schema import definition, fields_of_rule, leaves, spec_node

if TYPE_CHECKING:
    from kube_sandbox.api_server.errors import FieldError
    from kube_sandbox.api_server.resource_types import Behaviour

Spec = dict[str, Any]


@functools.cache
def _behaviour() -> Behaviour:
    (served,) = custom_resource_types(definition())
    return served.behaviour


def _object(spec: Spec) -> dict[str, Any]:
    metadata = {"name": "bn", "namespace": "shop"}
    obj = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND, "metadata": metadata, "spec": spec}
    obj = copy.deepcopy(obj)
    _behaviour().set_defaults(obj)
    return obj


def with_defaults(spec: Spec) -> Spec:
    filled: Spec = _object(spec)["spec"]
    return filled


def complaints(spec: Spec, old: Spec | None = None) -> list[FieldError]:
    """Return why the spec is refused in place of the old one; empty if it is accepted."""
    return _behaviour().validate(_object(spec), None if old is None else _object(old), "")


def blamed(error: FieldError) -> list[str]:
    """Return the leaves of a required field, else those that the complaint's rule reads: a change of one may resolve it."""
    # A rule may call a field required too: then it says why, and reads others.
    if error.kind == "Required value" and not error.detail:
        missing = re.sub(r"\[\d+\]", "[]", error.field)
        return [path for path in leaves() if path == missing or path.startswith((f"{missing}.", f"{missing}["))]
    return [
        path
        for at in spec_node().below()
        for rule in at.rules
        if rule["message"] in error.detail
        for path in fields_of_rule(at, rule["rule"])
    ]
