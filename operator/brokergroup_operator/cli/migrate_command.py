"""`brokergroup migrate`: from a running Java controller to ours, and back (docs/tasks/migration.md).

`plan` and `shadow` change nothing; `apply` writes to our own store only. `cut-over` and `back` change brokers' `controllerAddr`,
and only with `--yes`. Each step is a JSON line on standard output, a refusal a line on standard error.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokergroup_operator.cli.running import check_store, parse_address, parse_endpoint, run_until_signalled
from brokergroup_operator.option_groups import with_option_groups
from rocketmq_remoting.address import Address, AddressError

if TYPE_CHECKING:
    from brokergroup_operator.migrate.run import Home, Source

app = typer.Typer(help="From a running Java controller to ours, and back.", no_args_is_help=True, add_completion=False)

REFUSED = 2
FAILED = 3

Controller = Annotated[str, typer.Option("--controller", help="host:port of a member of the Java controller's group")]
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
Gone = Annotated[
    list[str] | None,
    typer.Option("--gone", help="host:port of a controller whose host is gone and cannot refuse; repeatable"),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without it, say what would be done")]


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How the Java controller's groups are found and read: options of every verb."""

    name_servers: Annotated[list[str] | None, typer.Option("--name-server", help="host:port; repeatable")] = None
    broker_names: Annotated[
        list[str] | None,
        typer.Option("--broker-name", help="Only this group; repeatable. Default: all the NameServers know"),
    ] = None
    credentials_file: Annotated[
        Path | None,
        typer.Option(
            "--credentials-file", help='JSON {"accessKey", "secretKey"} of an administrator, where brokers ask for it'
        ),
    ] = None

    def of_brokers(self) -> "Source":
        """Return the source of brokers that have no controller."""
        return self._of("")

    def of(self, controller: str) -> "Source":
        """Return the source with this controller. Raise typer.BadParameter for an address or a file that cannot be used."""
        return self._of(parse_address(controller, "--controller"))

    def _of(self, controller: str) -> "Source":
        from brokergroup_operator.migrate.run import Source
        from rocketmq_remoting.signature import Credentials

        credentials, file = None, self.credentials_file
        if file is not None:
            try:
                document = json.loads(file.read_text(encoding="utf-8"))
                credentials = Credentials(access_key=document["accessKey"], secret_key=document["secretKey"])
            except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
                what = f"{file}: {type(error).__name__}: {error}; expected JSON with accessKey and secretKey"
                raise typer.BadParameter(what, param_hint="--credentials-file") from error
        return Source(
            controller=controller,
            name_servers=tuple(parse_address(one, "--name-server") for one in self.name_servers or ()),
            broker_names=tuple(self.broker_names or ()),
            credentials=credentials,
        )


@app.command("plan")
@with_option_groups
def plan(
    controller: Controller,
    given: SourceOptions,
    output: Annotated[str, typer.Option("-o", "--output", help="table or json")] = "table",
) -> None:
    """Read the Java controller and its brokers, and show the records with every doubt. Exit code 2 if one blocks."""
    from brokergroup_operator.migrate import run

    if output not in ("table", "json"):
        raise typer.BadParameter(f"{output!r}: expected table or json", param_hint="--output")
    source = given.of(controller)
    reading, plans = run_to_exit_code(run.plan(source), Steps())
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
@with_option_groups
def apply(
    controller: Controller,
    store: Store,
    *,
    given: SourceOptions,
    kubeconfig: Kubeconfig = None,
    replace_older: Annotated[
        bool, typer.Option("--replace", help="Write over an older state of the same group")
    ] = False,
) -> None:
    """Write the records into our store. No plane acts on them before the cut; `cut-over` writes the last state itself."""
    from brokergroup_operator.migrate import run

    check_store(store)
    source = given.of(controller)
    reading, plans = run_to_exit_code(run.plan(source), Steps())
    blocking = [f"{name}: not known to this controller" for name in run.unknown_names(source, reading)]
    blocking += [
        f"{one.record.broker_name}: {doubt.what}: {doubt.remedy}"
        for one in plans
        for doubt in one.doubts
        if doubt.blocks
    ]
    if blocking or not plans:
        typer.echo(f"migrate: {'; '.join(blocking) or 'the controller knows none of the groups'}", err=True)
        raise typer.Exit(REFUSED)
    applied = run.apply(plans, store=store, kubeconfig=kubeconfig, replace_older=replace_older)
    written = run_to_exit_code(applied, Steps(failed=FAILED))
    typer.echo(json.dumps({key: standing.value for key, standing in written.items()}))


@app.command("shadow")
@with_option_groups
def shadow(
    controller: Controller,
    listen: Listen,
    given: SourceOptions,
) -> None:
    """Compare each decision of the Java controller with ours until SIGTERM. Add --listen to the brokers' controllerAddr by hand."""
    from brokergroup_operator.migrate import run

    source = given.of(controller)
    endpoint = parse_endpoint(listen, "--listen")
    _run_until_signalled(lambda stop, steps: run.shadow(source, listen=endpoint, stop=stop, report=steps))


@app.command("cut-over")
@with_option_groups
def cut_over(  # noqa: PLR0913 - one argument a flag
    controller: Controller,
    store: Store,
    listen: Listen,
    *,
    given: SourceOptions,
    advertise: Advertise = "",
    controller_list: ControllerList = "",
    java_stays_stopped: Annotated[
        bool,
        typer.Option(
            "--java-stays-stopped",
            help="You promise that no Java controller starts again. So ours leads as soon as every broker's heartbeats "
            "arrive here, and does not wait two minutes where brokers list ours already",
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

    source = given.of(controller)
    home = _home(store, listen, advertise, kubeconfig)
    controller_list = _controller_list(controller_list)
    if not yes:
        reading, plans = run_to_exit_code(run.plan(source), Steps())
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
    _run_until_signalled(lambda stop, steps: run.cut_over(source, home, settings, stop=stop, report=steps))


@app.command("back")
@with_option_groups
def back(  # noqa: PLR0913 - one argument a flag
    controller: Controller,
    store: Store,
    listen: Listen,
    *,
    given: SourceOptions,
    advertise: Advertise = "",
    controller_list: ControllerList = "",
    gone: Gone = None,
    kubeconfig: Kubeconfig = None,
    yes: Yes = False,
) -> None:
    """Hand the groups over to a Java controller that does not know them yet. Stop our controller first."""
    from brokergroup_operator.migrate import run
    from brokergroup_operator.migrate.back import BackSettings

    source = given.of(controller)
    home = _home(store, listen, advertise, kubeconfig)
    settings = BackSettings(
        controller=source.controller,
        own_address=home.address,
        controller_list=_controller_list(controller_list),
        gone=_gone(gone),
    )
    steps = Steps()
    states = run_to_exit_code(run.back(source, home, settings, dry_run=not yes, report=steps), steps)
    if not yes:
        typer.echo("nothing was done: say --yes to do it")
    for state in states:
        steps("done", group=state.broker_name, state=state.describe())


def _home(store: str, listen: str, advertise: str, kubeconfig: Path | None) -> "Home":
    from brokergroup_operator.migrate.run import Home

    check_store(store)
    endpoint, told = parse_endpoint(listen, "--listen"), advertise and parse_address(advertise, "--advertise")
    try:
        return Home(store=store, listen=endpoint, advertise=told, kubeconfig=kubeconfig)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--advertise") from error


def _controller_list(text: str) -> str:
    try:
        return ";".join(map(str, Address.parse_all(text, "--controller-list")))
    except AddressError as error:
        raise typer.BadParameter(f"{text!r}: expected {error.expected}", param_hint="--controller-list") from None


def _gone(addresses: list[str] | None) -> frozenset[str]:
    return frozenset(parse_address(one, "--gone") for one in addresses or ())


class Steps:
    """Prints each step as one JSON line on standard output. `failed`: the exit code of a failure now; `command`: its name."""

    def __init__(self, *, failed: int = REFUSED, command: str = "migrate") -> None:
        self.failed, self.command = failed, command

    def __call__(self, step: str, **facts: object) -> None:
        self.failed = FAILED
        line = {"at": round(time.time(), 3), "step": step, **facts}
        sys.stdout.write(json.dumps(line, default=_plain) + "\n")
        sys.stdout.flush()


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset | set) else str(value)


def run_to_exit_code(work: Coroutine[Any, Any, Any], steps: Steps) -> Any:
    """Run a verb; on its failure print why, and exit: with REFUSED before its first step, else with FAILED."""
    return asyncio.run(_with_exit_code(work, steps))


def _run_until_signalled(work: Callable[[asyncio.Event, Steps], Awaitable[None]]) -> None:
    steps = Steps()

    async def run(stop: asyncio.Event) -> None:
        await _with_exit_code(work(stop, steps), steps)

    run_until_signalled(run)


async def _with_exit_code(work: Awaitable[Any], steps: Steps) -> Any:
    """Print why a verb failed, and exit with REFUSED if it had not begun its first step, else with FAILED."""
    from brokergroup_operator.kube import ApiError
    from brokergroup_operator.migrate.back import BackError
    from brokergroup_operator.migrate.cut_over import CutOverError
    from brokergroup_operator.migrate.departure import DepartureError
    from brokergroup_operator.migrate.java import MigrationCallError
    from brokergroup_operator.migrate.plan import RecordInTheWayError
    from brokergroup_operator.migrate.pod_runs import ClaimsError
    from brokergroup_operator.migrate.quiet import QuietError
    from brokergroup_operator.migrate.sole_run import SoleRunError
    from brokergroup_operator.migrate.teach import TeachError
    from brokergroup_operator.records.store import RecordStoreError

    try:
        return await work
    except RecordInTheWayError as error:
        typer.echo(f"{steps.command}: {error}", err=True)
        raise typer.Exit(REFUSED) from error
    except (
        ApiError,
        BackError,
        ClaimsError,
        CutOverError,
        DepartureError,
        MigrationCallError,
        OSError,
        QuietError,
        RecordStoreError,
        SoleRunError,
        TeachError,
        ValueError,
    ) as error:
        typer.echo(f"{steps.command}: {error}", err=True)
        raise typer.Exit(steps.failed) from error
