"""`kubectl brokergroup generate`: a manifest to start from."""

from typing import Annotated, Any

import typer

from brokergroup_operator.api import names
from brokergroup_operator.kubectl import options
from brokergroup_operator.kubectl.errors import UsageError


def generate(
    group: options.GroupName,
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=16, help="Brokers of the group")] = 3,
    implementation: Annotated[str, typer.Option("--implementation", help="rocketmq or replica")] = "rocketmq",
    version: Annotated[str | None, typer.Option("--version", help="RocketMQ version")] = None,
    size: Annotated[str, typer.Option("--size", help="Size of each claim")] = "8Gi",
    storage_class: Annotated[str | None, typer.Option("--storage-class", help="Default: the cluster's")] = None,
    name_servers: Annotated[list[str] | None, typer.Option("--name-server", help="host:port; repeatable")] = None,
    durability: Annotated[str | None, typer.Option("--durability", help="Strict, Available or Fast")] = None,
    *,
    output: options.Output = options.Format.YAML,
    namespace: options.Namespace = None,
) -> None:
    """Print a BrokerGroup for kubectl apply -f -. Asks no cluster; what an API server would refuse is refused here."""
    from brokergroup_operator.kubectl.reach.admission import complaints
    from brokergroup_operator.kubectl.show.printing import print_objects

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
    if found := complaints(manifest):
        raise UsageError(f"generate {group}: an API server would refuse it: {'; '.join(found)}")
    print_objects(manifest, options.Format.JSON if output is options.Format.JSON else options.Format.YAML)
