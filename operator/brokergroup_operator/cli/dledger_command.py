"""`brokergroup adopt dledger`: the messages of a DLedger commit log become a backup that a BrokerGroup begins with.

`check` reads the store of one stopped member. `copy` shows the plan for all of them; with --yes it copies the chosen one's log. No
store is changed.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokergroup_operator.cli.migrate_command import REFUSED, Yes

if TYPE_CHECKING:
    from brokergroup_operator.migrate.dledger_plan import Copying, NamedMember

app = typer.Typer(
    help="Copy the messages of a DLedger commit log to a log that controller mode reads.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[str, typer.Option("--folder", help="Where in STORE the store is; default: it is the store itself")]
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


@app.command("check")
def check(
    store: Annotated[Path, typer.Argument(help="storePathRootDir of a stopped member")],
    folder: Folder = "",
) -> None:
    """Read a member's whole log and print what it says, as JSON for `copy`; change nothing. Exit code 2 if it cannot be copied."""
    import msgspec

    from brokergroup_operator.migrate.dledger_store import survey
    from brokergroup_operator.migrate.stores import Place, StoreError

    try:
        report = survey(Place(store, folder))
    except (StoreError, OSError) as error:
        typer.echo(f"adopt: {error}", err=True)
        raise typer.Exit(REFUSED) from error
    typer.echo(msgspec.json.encode(report).decode())


@app.command("copy")
def copy(  # noqa: PLR0913 (one argument a flag)
    reports: Annotated[list[Path], typer.Argument(help="What `check` printed, a file for each member")],
    members: Annotated[
        int, typer.Option("--members", min=1, help="How many members the DLedger group has, by dLegerPeers")
    ],
    cluster: Annotated[str, typer.Option("--cluster", help="brokerClusterName of the group to come")],
    broker_name: Annotated[str, typer.Option("--broker-name", help="brokerName: that of the DLedger group")],
    store: Annotated[
        Path | None, typer.Option("--store", help="storePathRootDir of the member that the plan chooses; for --yes")
    ] = None,
    *,
    folder: Folder = "",
    target: Annotated[
        Path | None,
        typer.Option(
            "--to", help="Where the claim of the copy is mounted; its disk must have room for what the plan says"
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option("--name", help="<group>/<copy>: the copy's folder in the claim, for spec.bootstrap.fromBackup"),
    ] = "",
    version: Annotated[
        str, typer.Option("--version", help="RocketMQ's version of the brokers that wrote the log")
    ] = "",
    older_offsets: Annotated[
        bool, typer.Option("--older-offsets", help="Also where another member's topics or offsets are newer")
    ] = False,
    yes: Yes = False,
) -> None:
    """Show which member's log is copied, and what is in the way; with --yes, copy it. Exit code 2 if it is blocked."""
    from brokergroup_operator.migrate.dledger_plan import judge

    plan = judge([_read(path) for path in reports], members=members, older_offsets=older_offsets)
    for line in plan.lines():
        typer.echo(line)
    if plan.blocked:
        typer.echo("adopt: blocked, nothing was done", err=True)
        raise typer.Exit(REFUSED)
    if not yes:
        typer.echo("nothing was done: say --yes to do it, with --store, --to and --name")
        return
    if store is None or target is None or not _NAME.fullmatch(name):
        raise typer.BadParameter(
            f"--store, --to and --name are {store}, {target} and {name!r}, expected all three, the name as <group>/<copy>"
        )
    _copy(plan, store, folder, target=target, name=name, cluster=cluster, broker_name=broker_name, version=version)


def _copy(
    plan: "Copying", store: Path, folder: str, *, target: Path, name: str, cluster: str, broker_name: str, version: str
) -> None:
    from brokergroup_operator.backup.files import BackupError
    from brokergroup_operator.backup.log_end import LogError
    from brokergroup_operator.migrate.dledger_copy import Target, copy_store, missing_bytes
    from brokergroup_operator.migrate.stores import Place, StoreError

    to = Target(claim=target, name=name, cluster_name=cluster, broker_name=broker_name, version=version)
    if missing := missing_bytes(plan.report, to):
        needed = plan.report.room_bytes
        typer.echo(f"adopt: blocked, {target} lacks {missing} of the {needed} bytes that the copy may take", err=True)
        raise typer.Exit(REFUSED)
    try:
        manifest = copy_store(Place(store, folder), plan.report, plan.others, to)
    except (StoreError, BackupError, LogError, OSError) as error:
        typer.echo(f"adopt: {error}", err=True)
        raise typer.Exit(REFUSED) from error
    typer.echo(
        f"copied {plan.report.messages} messages; the new log ends at {manifest.offset}. Create the BrokerGroup, with:"
    )
    lines = [
        "spec:",
        f"  brokerClusterName: {cluster}",
        f"  brokerName: {broker_name}",
        f"  bootstrap: {{fromBackup: {{claim: {{name: CLAIM, folder: {name}}}}}}}",
        "  config:",
        f'    mappedFileSizeCommitLog: "{plan.report.file_bytes}"',
    ]
    typer.echo(os.linesep.join(lines))


def _read(path: Path) -> "NamedMember":
    import msgspec

    from brokergroup_operator.migrate.dledger_plan import NamedMember
    from brokergroup_operator.migrate.dledger_store import MemberReport

    try:
        report = msgspec.json.decode(path.read_bytes(), type=MemberReport)
    except (OSError, msgspec.MsgspecError) as error:
        raise typer.BadParameter(
            f"{path}: {error}; expected what `adopt dledger check` printed", param_hint="REPORTS"
        ) from error
    return NamedMember(name=path.name, said=report)
