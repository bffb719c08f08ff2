"""What the conversations send, and where to."""

from __future__ import annotations

from typing import Any

THINGS = "/apis/example.dev/v1/namespaces/{ns}/things"
CORE = "/api/v1/namespaces/{ns}"
GROUPS = "/apis/brokergroup.dev/v1beta1/namespaces/{ns}/brokergroups"
STATES = "/apis/brokergroup.dev/v1beta1/namespaces/{ns}/brokergroupstates"
CLUSTERS = "/apis/brokergroup.dev/v1beta1/namespaces/{ns}/rocketmqclusters"
OPERATIONS = "/apis/brokergroup.dev/v1beta1/namespaces/{ns}/brokergroupoperations"


def thing(name: str = "one", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.dev/v1",
        "kind": "Thing",
        "metadata": {"name": name},
        "spec": {"mode": "Small", **spec},
    }


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    containers = [
        {
            "name": "c",
            "image": "registry.example/x:1",
            "ports": [{"containerPort": 80}],
            "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "readinessProbe": {"tcpSocket": {"port": 80}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "resources": {"limits": {"memory": "1Gi"}},
        }
    ]
    volumes = [{"name": "v", "configMap": {"name": "m"}}, {"name": "w", "emptyDir": {}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"a": "b"}},
        "spec": {"containers": containers, "volumes": volumes, **spec},
    }


def group(name: str = "g", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokergroup.dev/v1beta1",
        "kind": "BrokerGroup",
        "metadata": {"name": name},
        "spec": {"implementation": "Python", **spec},
    }


def state(**record: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokergroup.dev/v1beta1",
        "kind": "BrokerGroupState",
        "metadata": {"name": "g"},
        "record": {"clusterName": "c", "brokerName": "b", **record},
    }


def reason(answer: dict[str, Any]) -> Any:
    return answer.get("reason")


def cluster(name: str = "c", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokergroup.dev/v1beta1",
        "kind": "RocketMQCluster",
        "metadata": {"name": name},
        "spec": spec,
    }
