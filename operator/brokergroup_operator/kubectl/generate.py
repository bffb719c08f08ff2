"""`kubectl brokergroup generate`: a manifest to start from, refused here where an API server would refuse it.

It asks no cluster, so not `--dry-run=server` but the kind's own schema and rules judge the manifest. Those are heavy (the types
behind the CRD, and CEL): only the call imports them.
"""

import copy
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from brokergroup_operator.api import names
from brokergroup_operator.kubectl.command_line import Format, GroupName, Namespace, Output, UsageError


def generate(
    group: GroupName,
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=16, help="Brokers of the group")] = 3,
    implementation: Annotated[str, typer.Option("--implementation", help="Java or Python")] = "Java",
    version: Annotated[str | None, typer.Option("--version", help="RocketMQ version")] = None,
    size: Annotated[str, typer.Option("--size", help="Size of each claim")] = "8Gi",
    storage_class: Annotated[str | None, typer.Option("--storage-class", help="Default: the cluster's")] = None,
    name_servers: Annotated[list[str] | None, typer.Option("--name-server", help="host:port; repeatable")] = None,
    durability: Annotated[str | None, typer.Option("--durability", help="Strict, Available or Fast")] = None,
    *,
    output: Output = Format.YAML,
    namespace: Namespace = None,
) -> None:
    """Print a BrokerGroup for kubectl apply -f -. Asks no cluster; what an API server would refuse is refused here."""
    from brokergroup_operator.kubectl.printing import print_objects

    spec: dict[str, Any] = {
        "replicas": replicas,
        "implementation": implementation,
        **({"version": version} if version else {}),
        **({"nameServers": name_servers} if name_servers else {}),
        **({"durability": durability} if durability else {}),
        "storage": {"size": size, **({"storageClassName": storage_class} if storage_class is not None else {})},
    }
    metadata = {"name": group, **({"namespace": namespace} if namespace else {})}
    manifest = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND, "metadata": metadata, "spec": spec}
    if found := list(dict.fromkeys(complaints(copy.deepcopy(manifest)))):
        raise UsageError(f"generate {group}: an API server would refuse it: {'; '.join(found)}")
    print_objects(manifest, Format.JSON if output is Format.JSON else Format.YAML)


def complaints(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield `field: what is wrong with its value` for each fault. Changes the manifest, as admission does."""
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.api.definitions.generate import KINDS, custom_resource_definition
    from kube_sandbox.api_server.kinds.custom_resources import custom_resource_types
    from kube_sandbox.api_server.store import metadata

    [kind] = [kind for kind in KINDS if kind.type is BrokerGroup]
    [resource] = custom_resource_types(custom_resource_definition(kind))
    for field in resource.behaviour.drop_unknown_fields(manifest):
        yield f"{field}: no such field"
    resource.behaviour.set_defaults(manifest)
    yield from (f"{error.field}: {error.message}" for error in metadata.validate(manifest["metadata"], None))
    if namespace := manifest["metadata"].get("namespace"):
        # A namespace is an object too, and its name stricter than a group's: no dots.
        named = metadata.validate({"name": namespace}, None, name_rule="label")
        yield from (f"metadata.namespace: {error.message}" for error in named)
    yield from (f"{error.field}: {error.message}" for error in resource.behaviour.validate(manifest, None, ""))
