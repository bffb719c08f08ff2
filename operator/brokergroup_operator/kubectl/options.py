"""The options that many verbs share, spelled as kubectl spells them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from brokergroup_operator.kubectl.durations import seconds

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="metadata.name of the BrokerGroup")]
OptionalGroupName = Annotated[str | None, typer.Argument(metavar="[GROUP]", help="metadata.name of the BrokerGroup")]
Member = Annotated[int, typer.Argument(metavar="BROKER-ID", help="As in status.members", min=1)]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the group; default: the context's")
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces")]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig")]
Kubeconfig = Annotated[Path | None, typer.Option("--kubeconfig", help="A kubeconfig file")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again after every change")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for its end; exit code 1 if it is not a success")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", parser=seconds, metavar="DURATION", help="How long --wait waits: 100s, 5m, or plain seconds"
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
Confirm = Annotated[
    str | None, typer.Option("--confirm", metavar="GROUP", help="The group's name, instead of typing it when asked")
]


class Format(StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="How it is printed")]
DEFAULT_TIMEOUT_SECONDS = 600.0
