"""Sets one switch of spec.maintenance, and says what that means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from brokergroup_operator.api import names
from brokergroup_operator.kubectl.reach.kinds import BROKER_GROUPS

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.reach.cluster import Cluster


def maintain(cluster: Cluster, group: str, switch: str, *, on: bool, word: str) -> None:
    cluster.patch(BROKER_GROUPS, group, {"spec": {"maintenance": {switch: on}}})
    typer.echo(f"brokergroup.{names.GROUP}/{group} {word}")
