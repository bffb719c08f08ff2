"""`brokergroup migrate`: from a running Java controller to ours, and back (docs/tasks/migration.md).

`plan` and `shadow` change nothing; `apply` writes to our own store only. `cut-over` and `back` change brokers' `controllerAddr`,
and do so only with `--yes`. What happens is told as JSON lines on standard output, refusals on standard error.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokergroup_operator.cli.endpoints import check_store, parse_address, parse_addresses, parse_endpoint

if TYPE_CHECKING:
    from brokergroup_operator.migrate.run import Home, Source

app = typer.Typer(help="From a running Java controller to ours, and back.", no_args_is_help=True, add_completion=False)

REFUSED = 2
FAILED = 3

Controller = Annotated[str, typer.Option("--controller", help="host:port of a member of the Java controller's group")]
NameServers = Annotated[list[str] | None, typer.Option("--name-server", help="host:port; repeatable")]
BrokerNames = Annotated[
    list[str] | None,
    typer.Option("--broker-name", help="Only this group; repeatable. Default: all the NameServers know"),
]
Store = Annotated[str, typer.Option("--store", help="file:<folder> or kubernetes:<namespace>")]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="For kubernetes:<namespace>; default: KUBECONFIG")
]
Listen = Annotated[str, typer.Option("--listen", help="host:port of our controller, as it binds it")]
Advertise = Annotated[str, typer.Option("--advertise", help="host:port as brokers dial it; default: --listen")]
ControllerList = Annotated[
    str,
    typer.Option("--controller-list", help="The controllerAddr that brokers get; default: the new controller alone"),
]
CredentialsFile = Annotated[
    Path | None,
    typer.Option(
        "--credentials-file", help='JSON {"accessKey", "secretKey"} of an administrator, where brokers ask for it'
    ),
]
Gone = Annotated[
    list[str] | None,
    typer.Option("--gone", help="host:port of a controller whose host is gone and cannot refuse; repeatable"),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without it, say what would be done")]
Output = Annotated[str, typer.Option("-o", "--output", help="table or json")]


@app.command("plan")
def plan(
    controller: Controller,
    name_servers: NameServers = None,
    broker_names: BrokerNames = None,
    credentials_file: CredentialsFile = None,
    output: Output = "table",
) -> None:
    """Read the Java controller and its brokers, and show the records with every doubt. Exit code 2 if one blocks."""
    from brokergroup_operator.migrate import run

    if output not in ("table", "json"):
        raise typer.BadParameter(f"{output!r}: expected table or json", param_hint="--output")
    source = _source(controller, name_servers, broker_names, credentials_file)
    reading, plans = _run(run.plan(source), failed=REFUSED)
    if output == "json":
        document = {
            "leader": reading.leader,
            "peers": list(reading.peers),
            "unknown": list(reading.unknown),
            "others": list(reading.others),
        }
        typer.echo(json.dumps({**document, "groups": [one.as_json() for one in plans]}))
    else:
        typer.echo(f"leader {reading.leader}, members {', '.join(reading.peers)}")
        for one in plans:
            typer.echo(one.as_text())
        for name in reading.unknown:
            typer.echo(f"{name}: not known to this controller")
        for name in reading.others:
            typer.echo(f"{name}: this controller's too, not asked for")
    if not plans or any(one.blocked for one in plans):
        raise typer.Exit(REFUSED)


@app.command("apply")
def apply(
    controller: Controller,
    store: Store,
    name_servers: NameServers = None,
    broker_names: BrokerNames = None,
    credentials_file: CredentialsFile = None,
    *,
    kubeconfig: Kubeconfig = None,
    replace_older: Annotated[
        bool, typer.Option("--replace", help="Write over an older state of the same group")
    ] = False,
) -> None:
    """Write the records into our store. Nobody acts on them before the cut; `cut-over` writes the last state itself."""
    from brokergroup_operator.migrate import run

    check_store(store)
    source = _source(controller, name_servers, broker_names, credentials_file)
    reading, plans = _run(run.plan(source), failed=REFUSED)
    blocking = [f"{name}: not known to this controller" for name in run.unknown_names(source, reading)]
    blocking += [
        f"{one.record.broker_name}: {doubt.what}: {doubt.remedy}"
        for one in plans
        for doubt in one.doubts
        if doubt.blocks
    ]
    if blocking or not plans:
        _refuse("; ".join(blocking) or "the controller knows none of the groups")
    written = _run(run.apply(plans, store=store, kubeconfig=kubeconfig, replace_older=replace_older))
    typer.echo(json.dumps({key: standing.value for key, standing in written.items()}))


@app.command("shadow")
def shadow(
    controller: Controller,
    listen: Listen,
    name_servers: NameServers = None,
    broker_names: BrokerNames = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """Stand beside the Java controller until SIGTERM and judge each of its decisions. Add --listen to controllerAddr by hand."""
    from brokergroup_operator.migrate import run

    source = _source(controller, name_servers, broker_names, credentials_file)
    endpoint = parse_endpoint(listen, "--listen")
    _run_until_signalled(lambda stop: run.shadow(source, listen=endpoint, stop=stop, report=report_line))


@app.command("cut-over")
def cut_over(  # noqa: PLR0913 - one argument a flag
    controller: Controller,
    store: Store,
    listen: Listen,
    name_servers: NameServers = None,
    broker_names: BrokerNames = None,
    credentials_file: CredentialsFile = None,
    *,
    advertise: Advertise = "",
    controller_list: ControllerList = "",
    java_stays_stopped: Annotated[
        bool,
        typer.Option(
            "--java-stays-stopped",
            help="My word that no Java controller starts again: lead as soon as every broker is heard here, without "
            "waiting two minutes for brokers that list ours already",
        ),
    ] = False,
    stop_deadline_seconds: Annotated[
        float, typer.Option("--stop-deadline-seconds", help="How long to wait for the Java controllers to be stopped")
    ] = 600.0,
    leave_others: Annotated[
        bool,
        typer.Option("--leave-others", help="Other groups of this Java controller may be left without a controller"),
    ] = False,
    gone: Gone = None,
    kubeconfig: Kubeconfig = None,
    yes: Yes = False,
) -> None:
    """Take over when the Java controllers are stopped, then be the controller until SIGTERM."""
    from brokergroup_operator.migrate import run
    from brokergroup_operator.migrate.cut_over import CutOverSettings

    source = _source(controller, name_servers, broker_names, credentials_file)
    home = _home(store, listen, advertise, kubeconfig)
    controller_list = parse_addresses(controller_list, "--controller-list")
    if not yes:
        reading, plans = _run(run.plan(source), failed=REFUSED)
        would = controller_list or home.address
        typer.echo(
            f"would follow {', '.join(reading.peers)} until stopped, then give every broker controllerAddr={would}"
        )
        for one in plans:
            typer.echo(one.as_text())
        typer.echo("nothing was done: say --yes to do it")
        raise typer.Exit(REFUSED if any(one.blocked for one in plans) else 0)
    settings = CutOverSettings(
        own_address=home.address,
        controller_list=controller_list or home.address,
        java_stays_stopped=java_stays_stopped,
        leave_others=leave_others,
        gone=_gone(gone),
        stop_deadline_seconds=stop_deadline_seconds,
    )
    _run_until_signalled(lambda stop: run.cut_over(source, home, settings, stop=stop, report=report_line))


@app.command("back")
def back(  # noqa: PLR0913 - one argument a flag
    controller: Controller,
    store: Store,
    listen: Listen,
    name_servers: NameServers = None,
    broker_names: BrokerNames = None,
    credentials_file: CredentialsFile = None,
    *,
    advertise: Advertise = "",
    controller_list: ControllerList = "",
    gone: Gone = None,
    kubeconfig: Kubeconfig = None,
    yes: Yes = False,
) -> None:
    """Hand the groups over to a Java controller that does not know them yet. Stop our controller first."""
    from brokergroup_operator.migrate import run
    from brokergroup_operator.migrate.back import BackSettings

    source = _source(controller, name_servers, broker_names, credentials_file)
    home = _home(store, listen, advertise, kubeconfig)
    settings = BackSettings(
        controller=source.controller,
        own_address=home.address,
        controller_list=parse_addresses(controller_list, "--controller-list"),
        gone=_gone(gone),
    )
    states = _run(
        run.back(source, home, settings, dry_run=not yes, report=report_line), failed=FAILED if yes else REFUSED
    )
    if not yes:
        typer.echo("nothing was done: say --yes to do it")
    for state in states:
        report_line("done", group=state.broker_name, state=state.describe())


def _source(
    controller: str, name_servers: list[str] | None, broker_names: list[str] | None, credentials_file: Path | None
) -> "Source":
    from brokergroup_operator.migrate.run import Source
    from rocketmq_remoting.signature import Credentials

    credentials = None
    if credentials_file is not None:
        try:
            document = json.loads(credentials_file.read_text(encoding="utf-8"))
            credentials = Credentials(access_key=document["accessKey"], secret_key=document["secretKey"])
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            what = f"{credentials_file}: {type(error).__name__}: {error}; expected JSON with accessKey and secretKey"
            raise typer.BadParameter(what, param_hint="--credentials-file") from error
    return Source(
        controller=parse_address(controller, "--controller"),
        name_servers=tuple(parse_address(one, "--name-server") for one in name_servers or ()),
        broker_names=tuple(broker_names or ()),
        credentials=credentials,
    )


def _home(store: str, listen: str, advertise: str, kubeconfig: Path | None) -> "Home":
    from brokergroup_operator.migrate.run import Home

    check_store(store)
    endpoint, told = parse_endpoint(listen, "--listen"), advertise and parse_address(advertise, "--advertise")
    try:
        return Home(store=store, listen=endpoint, advertise=told, kubeconfig=kubeconfig)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--advertise") from error


def _gone(addresses: list[str] | None) -> frozenset[str]:
    return frozenset(parse_address(one, "--gone") for one in addresses or ())


def report_line(step: str, **facts: object) -> None:
    """One JSON line on standard output, at once."""
    line = {"at": round(time.time(), 3), "step": step, **facts}
    sys.stdout.write(json.dumps(line, default=_plain) + "\n")
    sys.stdout.flush()


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset | set) else str(value)


def _refuse(why: str) -> None:
    typer.echo(f"migrate: {why}", err=True)
    raise typer.Exit(REFUSED)


def _run(work: Coroutine[Any, Any, Any], *, failed: int = FAILED) -> Any:
    """`failed` is the exit code of what can only fail before anything is done (REFUSED), or may have begun (FAILED)."""

    async def main() -> Any:
        return await _telling(work, failed)

    return asyncio.run(main())


def _run_until_signalled(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    from brokergroup_operator.cli.signals import run_until_signalled

    async def run(stop: asyncio.Event) -> None:
        await _telling(work(stop), FAILED)

    run_until_signalled(run)


async def _telling(work: Awaitable[Any], failed: int) -> Any:
    """Say why a verb could not do it, and leave with the exit code that says whether it had begun."""
    from brokergroup_operator.kube import ApiError
    from brokergroup_operator.migrate.back import BackError
    from brokergroup_operator.migrate.cut_over import CutOverError
    from brokergroup_operator.migrate.java_calls import MigrationCallError
    from brokergroup_operator.migrate.records import RecordInTheWayError
    from brokergroup_operator.migrate.teach import TeachError
    from brokergroup_operator.records.store import RecordStoreError

    try:
        return await work
    except RecordInTheWayError as error:
        typer.echo(f"migrate: {error}", err=True)
        raise typer.Exit(REFUSED) from error
    except (
        CutOverError,
        BackError,
        TeachError,
        MigrationCallError,
        RecordStoreError,
        ApiError,
        OSError,
        ValueError,
    ) as error:
        typer.echo(f"migrate: {error}", err=True)
        raise typer.Exit(failed) from error
