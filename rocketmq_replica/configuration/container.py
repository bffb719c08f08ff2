"""``container.conf``: the container's own port and who may use it.

Java's keys. Its ``namesrvAddr`` is not among them: here each broker registers with the NameServers of its own ``broker.conf``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rocketmq_replica.configuration.property_values import ip_address, load, prop, read_properties, whole
from rocketmq_replica.configuration.security_configuration import SecurityConfiguration

if TYPE_CHECKING:
    from collections.abc import Mapping


def _paths(value: str) -> tuple[Path, ...]:
    found = tuple(Path(part) for part in value.split(":") if part)
    if not found:
        raise ValueError("expected paths of broker.conf files, separated by ':'")
    return found


@dataclass(frozen=True, kw_only=True)
class ContainerConfiguration(SecurityConfiguration):
    """Java listens everywhere, here it is asked for: whoever reaches this port reads which brokers there are."""

    bind_address: str = prop("bindAddress", ip_address, default="127.0.0.1")
    listen_port: int = prop("listenPort", whole(1, 65535), default=10811)
    broker_config_paths: tuple[Path, ...] = prop("brokerConfigPaths", _paths, default=())


def load_container_configuration(path: Path, environment: Mapping[str, str]) -> ContainerConfiguration:
    """Read the file; ConfigurationError names what is wrong with it."""
    return load(
        path, lambda content: read_properties(ContainerConfiguration, content, environment, file_name="container.conf")
    )
