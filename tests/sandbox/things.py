"""A kind to play with: some of everything that a definition can say."""

from __future__ import annotations

from typing import Any

THING_DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.dev"},
    "spec": {
        "group": "example.dev",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"], "categories": ["example"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                },
                "additionalPrinterColumns": [
                    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["mode"],
                                "x-kubernetes-validations": [
                                    {
                                        "rule": "self.mode != 'Big' || self.replicas >= 3",
                                        "message": "Big needs 3 replicas",
                                        "fieldPath": ".replicas",
                                    },
                                    {"rule": "self.mode == oldSelf.mode", "message": "mode is immutable"},
                                ],
                                "properties": {
                                    "replicas": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
                                    "mode": {"type": "string", "enum": ["Big", "Small"]},
                                    "names": {
                                        "type": "array",
                                        "maxItems": 3,
                                        "items": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                                    },
                                    "epoch": {
                                        "type": "integer",
                                        "x-kubernetes-validations": [{"rule": "self >= oldSelf"}],
                                    },
                                    "size": {"x-kubernetes-int-or-string": True},
                                    "config": {"type": "object", "additionalProperties": {"type": "string"}},
                                    "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    "parts": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["id"],
                                        "maxItems": 8,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "properties": {
                                                "id": {"type": "integer"},
                                                "code": {"type": "string", "maxLength": 32},
                                            },
                                            "x-kubernetes-validations": [
                                                {
                                                    "rule": "oldSelf.code == '' || self.code == oldSelf.code",
                                                    "message": "code never changes",
                                                }
                                            ],
                                        },
                                    },
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {
                                    "replicas": {"type": "integer"},
                                    "conditions": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["type"],
                                        "items": {
                                            "type": "object",
                                            "required": ["type", "status"],
                                            "properties": {"type": {"type": "string"}, "status": {"type": "string"}},
                                        },
                                    },
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}
