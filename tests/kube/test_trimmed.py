"""Trimmed objects in caches: fields without a reader are dropped, and each text is stored once."""

from __future__ import annotations

import copy
import json
from typing import Any

from brokergroup_operator.kube.trimmed import trimmed

LABELS: dict[str, Any] = {".": {}, "f:app.kubernetes.io/instance": {}}
OBJECT: dict[str, Any] = {
    "metadata": {
        "name": "orders-1",
        "annotations": {"a": "b"},
        "managedFields": [
            {
                "manager": "ours",
                "operation": "Apply",
                "time": "2026-11-28T07:00:00Z",
                "fieldsV1": {"f:metadata": {"f:labels": LABELS, "f:annotations": {"f:a": {}}}, "f:spec": {"f:a": {}}},
            },
            {"manager": "others", "operation": "Update", "time": "2026-11-28T08:00:00Z", "fieldsV1": {"f:status": {}}},
        ],
    },
    "spec": {"containers": [{"name": "broker", "args": ["x" * 100], "ports": [1, 2.5, True, None]}]},
}


def test_managed_fields_go_and_the_rest_stays() -> None:
    before = copy.deepcopy(OBJECT)
    result = trimmed(OBJECT)
    assert result == {"metadata": {"name": "orders-1", "annotations": {"a": "b"}}, "spec": OBJECT["spec"]}
    assert before == OBJECT, "the object itself is left alone"


def test_of_a_named_manager_its_time_and_its_labels_stay() -> None:
    ours = {
        "manager": "ours",
        "time": "2026-11-28T07:00:00Z",
        "fieldsV1": {"f:metadata": {"f:labels": LABELS}},
    }
    result = trimmed(OBJECT, {"ours"})
    assert result["metadata"]["managedFields"] == [ours]
    assert trimmed(result, {"ours"}) == result, "once is enough"


def test_objects_share_their_field_names_and_short_texts() -> None:
    first, second = (trimmed(json.loads(json.dumps(OBJECT))) for _ in range(2))
    [one], [other] = first["spec"]["containers"], second["spec"]["containers"]
    assert one["name"] is other["name"]
    assert all(mine is yours for mine, yours in zip(one, other, strict=True))
    assert one["args"] == other["args"], "a long text is equal, and not searched for"
