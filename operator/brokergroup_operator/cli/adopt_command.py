"""`brokergroup adopt`: the stores of another deployment, static roles or a controller's, become a group's (docs/tasks/adopt.md).

`check` changes nothing, nor does any other verb without --yes.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from brokergroup_operator.cli import dledger_command
from brokergroup_operator.cli.migrate_command import (
    FAILED,
    REFUSED,
    Kubeconfig,
    SourceOptions,
    Steps,
    Store,
    Yes,
    run_to_exit_code,
)
from brokergroup_operator.cli.running import check_store
from brokergroup_operator.option_groups import with_option_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokergroup_operator.migrate.adopt import Adoption, NamedStore
    from brokergroup_operator.migrate.departure import Departure, Target
    from brokergroup_operator.migrate.quiet import StaticGroup
    from brokergroup_operator.migrate.stores import Change, StoreReport

T = TypeVar("T")
app = typer.Typer(
    help="Go on with the stores of brokers that had static roles, or another controller.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(dledger_command.app, name="dledger")

Folder = Annotated[str, typer.Option("--folder", help="Where in it the store is; default: it is the store itself")]
CommitLog = Annotated[
    Path | None, typer.Option("--commit-log", help="storePathCommitLog, if the log is on another disk than the store")
]
Say = Annotated[
    Path | None, typer.Option("--say", help="Write the answer, or the fault, to this file too (a termination message)")
]
To = Annotated[str, typer.Option("--to", help="java-controller or static-roles")]
Controllers = Annotated[
    str, typer.Option("--controller-addr", help="controllerAddr for the brokers: the Java controllers, separated by ;")
]
StorePath = Annotated[str, typer.Option("--store-path", help="storePathRootDir in the other deployment")]
Output = Annotated[
    Path | None, typer.Option("--output", help="Write broker-ID.conf files to this folder; default: print")
]
ClusterName = Annotated[str, typer.Option("--cluster", help="brokerClusterName")]
BrokerName = Annotated[str, typer.Option("--broker-name", help="brokerName")]


@app.command("quiet")
@with_option_groups
def quiet(
    *,
    given: SourceOptions,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=1.0, help="How long the slaves may take; then the master takes messages again"),
    ] = 60.0,
    yes: Yes = False,
) -> None:
    """Show brokers with static roles, from --name-server and --broker-name; with --yes, keep the master from taking messages
    (brokerPermission=4) until every slave has all of them, and leave it so. Exit code 2 if they cannot be taken over."""
    from brokergroup_operator.migrate import run

    if not given.name_servers or not given.broker_names:
        raise typer.BadParameter("expected at least one each", param_hint="--name-server, --broker-name")
    blocked: list[str] = []
    next_steps: dict[str, str] = {}

    def show_group(group: "StaticGroup") -> None:
        for line in group.lines():
            typer.echo(line)
        blocked.extend([group.broker_name] if group.blocked else [])
        next_steps[group.broker_name] = group.next_step

    steps = Steps(command="adopt")
    source = given.of_brokers()
    run_to_exit_code(run.quiet(source, report=steps, seconds=seconds, yes=yes, show=show_group), steps)
    if blocked:
        raise typer.Exit(REFUSED)
    for name, next_step in next_steps.items():
        typer.echo(f"{name}: {next_step}" if yes else f"{name}: nothing was done: say --yes to do it. Then {next_step}")


@app.command("check")
def check(
    store: Annotated[Path, typer.Argument(help="storePathRootDir of a stopped broker")],
    folder: Folder = "",
    commit_log: CommitLog = None,
    say: Say = None,
) -> None:
    """Print what a store's files say, as JSON for `begin`. Nothing is changed."""
    from brokergroup_operator.migrate.stores import Place, inspect

    _say_report(lambda: inspect(Place(store, folder, commit_log)), say)


@app.command("prepare")
def prepare(  # noqa: PLR0913 (one argument a flag)
    store: Annotated[Path, typer.Argument(help="storePathRootDir of a stopped broker")],
    cluster: ClusterName,
    broker_name: BrokerName,
    broker_id: Annotated[int, typer.Option("--broker-id", min=1, help="As `begin` lists it")],
    folder: Folder = "",
    commit_log: CommitLog = None,
    renew_epoch: Annotated[
        int,
        typer.Option(
            "--renew-epoch",
            min=0,
            help="Of a broker before 5.1.1: the epoch that replaces its old ones, as `begin` lists it",
        ),
    ] = 0,
    say: Say = None,
    *,
    yes: Yes = False,
) -> None:
    """Show what makes a store ready for controller mode; with --yes, write its identity, and its first epoch if it has none."""
    from brokergroup_operator.migrate.stores import Identity, Place, preparation
    from brokergroup_operator.migrate.stores import prepare as make_ready

    place, holder = (
        Place(store, folder, commit_log),
        Identity(cluster_name=cluster, broker_name=broker_name, broker_id=broker_id),
    )
    if yes:
        _say_report(lambda: make_ready(place, holder, renewed_epoch=renew_epoch), say)
    else:
        _show_changes(lambda: preparation(place, holder, renewed_epoch=renew_epoch), say)


@app.command("begin")
def begin(
    reports: Annotated[
        list[Path], typer.Argument(help="What `check` printed, a file for each store; the master's first")
    ],
    cluster: ClusterName,
    broker_name: BrokerName,
    store: Store,
    *,
    kubeconfig: Kubeconfig = None,
    yes: Yes = False,
) -> None:
    """Show the plan for these stores; with --yes, write the record that our controller begins with. Exit code 2 if blocked."""
    from brokergroup_operator.migrate import run
    from brokergroup_operator.migrate.adopt import judge

    check_store(store)
    adoption = judge([_read(path) for path in reports], cluster_name=cluster, broker_name=broker_name)
    show(adoption)
    if not yes:
        typer.echo("nothing was done: say --yes to do it")
        return
    steps = Steps(failed=FAILED, command="adopt")
    standing = run_to_exit_code(run.begin(adoption, store=store, kubeconfig=kubeconfig), steps)
    steps("begun", group=broker_name, record=standing.value)


@app.command("claims")
def claims(  # noqa: PLR0913 (one argument a flag)
    group: Annotated[str, typer.Argument(help="Name of the BrokerGroup to come")],
    claim: Annotated[
        list[str],
        typer.Option(
            "--claim", help="CLAIM or CLAIM:FOLDER, where the store is a folder of the volume; the master's first"
        ),
    ],
    cluster: ClusterName,
    broker_name: BrokerName,
    image: Annotated[str, typer.Option("--image", help="The operator's image, for a pod on each volume")],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the claims, and of the group")] = "default",
    pod_seconds: Annotated[
        float, typer.Option("--pod-seconds", min=1.0, help="How long a pod may take: it reads the log's last files")
    ] = 600.0,
    *,
    kubeconfig: Kubeconfig = None,
    yes: Yes = False,
) -> None:
    """Show what becomes of the claims of stopped brokers; with --yes, make them a BrokerGroup's. Exit code 2 if it is blocked."""
    from brokergroup_operator.migrate import run
    from brokergroup_operator.migrate.claims import SourceClaim, Wish

    sources = tuple(SourceClaim(name=name, folder=folder) for name, _, folder in (one.partition(":") for one in claim))
    wish = Wish(
        namespace=namespace,
        group=group,
        cluster_name=cluster,
        broker_name=broker_name,
        sources=sources,
        image=image,
        pod_seconds=pod_seconds,
    )
    steps = Steps(command="adopt")
    spec = run_to_exit_code(run.take_claims(wish, kubeconfig=kubeconfig, report=steps, yes=yes, show=show), steps)
    if not yes:
        typer.echo("nothing was done: say --yes to do it")
        return
    typer.echo(f"create BrokerGroup {namespace}/{group} now, with:\n{spec}")


@app.command("release")
def release(
    store: Annotated[Path, typer.Argument(help="storePathRootDir of a stopped member")],
    to: To,
    folder: Folder = "",
    commit_log: CommitLog = None,
    say: Say = None,
    *,
    yes: Yes = False,
) -> None:
    """Show what makes a stopped member's store ready for a Java controller, or for static roles; with --yes, do it. `back` shows
    whether the group may go."""
    from brokergroup_operator.migrate.departure import Target
    from brokergroup_operator.migrate.stores import Place, releasing
    from brokergroup_operator.migrate.stores import release as make_ready

    place, to_controller = Place(store, folder, commit_log), _target(to) is Target.JAVA_CONTROLLER
    if yes:
        _say_report(lambda: make_ready(place, to_controller=to_controller), say)
    else:
        _show_changes(lambda: releasing(place, to_controller=to_controller), say)


@app.command("back")
def back(  # noqa: PLR0913 (one argument a flag)
    reports: Annotated[list[Path], typer.Argument(help="What `check` printed, a file for each member's store")],
    broker_name: BrokerName,
    to: To,
    store: Store,
    *,
    controllers: Controllers = "",
    store_path: StorePath = "/home/rocketmq/store",
    output: Output = None,
    kubeconfig: Kubeconfig = None,
    yes: Yes = False,
) -> None:
    """Show the way of a stopped group back to a Java controller or static roles; with --yes, once `release` was run on each store,
    remove its record. Exit code 2 if it is blocked."""
    from brokergroup_operator.migrate import run

    check_store(store)
    target = _target(to, controllers)
    stores = [_read(path) for path in reports]
    steps = Steps(command="adopt")

    def show_plan(departure: "Departure") -> None:
        show_departure(departure, output, store_path, {})

    run_to_exit_code(
        run.leave(
            broker_name, stores, target,
            controllers=controllers, store=store, kubeconfig=kubeconfig, yes=yes, show=show_plan,
        ),
        steps,
    )  # fmt: skip
    if not yes:
        typer.echo(
            "nothing was done: run `adopt release --yes` on each store, `adopt check` again, and say --yes to remove the record"
        )
        return
    steps("removed", group=broker_name)


@app.command("claims-back")
def release_claims(  # noqa: PLR0913 (one argument a flag)
    group: Annotated[str, typer.Argument(help="Name of the hibernated BrokerGroup")],
    to: To,
    image: Annotated[str, typer.Option("--image", help="The operator's image, for a pod on each volume")],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the group")] = "default",
    pod_seconds: Annotated[float, typer.Option("--pod-seconds", min=1.0, help="How long a pod may take")] = 600.0,
    *,
    controllers: Controllers = "",
    store_path: StorePath = "/home/rocketmq/store",
    output: Output = None,
    kubeconfig: Kubeconfig = None,
    yes: Yes = False,
) -> None:
    """Show how a hibernated group's claims go to a Java controller or static roles; with --yes, delete the BrokerGroup, make each
    store ready, and remove the record. The claims stay. Exit code 2 if it is blocked."""
    from brokergroup_operator.migrate import run
    from brokergroup_operator.migrate.claims_back import BackWish

    target = _target(to, controllers)
    wish = BackWish(
        namespace=namespace, group=group, target=target, image=image, controllers=controllers, pod_seconds=pod_seconds
    )
    steps = Steps(command="adopt")

    def show_plan(departure: "Departure", further: "Mapping[str, str]") -> None:
        typer.echo(
            f"BrokerGroup {namespace}/{group} is deleted first; its claims stay, and no broker of it starts on them again"
        )
        show_departure(departure, output, store_path, further)

    run_to_exit_code(run.release_claims(wish, kubeconfig=kubeconfig, report=steps, yes=yes, show=show_plan), steps)
    if not yes:
        typer.echo("nothing was done: say --yes to do it")


def show_departure(departure: "Departure", output: Path | None, store_path: str, further: "Mapping[str, str]") -> None:
    """Print the plan and each broker's properties, or write these to files; end with exit code 2 if something blocks it."""
    for line in departure.lines():
        typer.echo(line)
    if departure.blocked:
        typer.echo("adopt: blocked, nothing was done", err=True)
        raise typer.Exit(REFUSED)
    for one in departure.members:
        properties = departure.properties(one.broker_id, store=store_path, further=further)
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        if output is None:
            typer.echo(f"# broker-{one.broker_id}.conf\n{text}")
        else:
            output.mkdir(parents=True, exist_ok=True)
            (output / f"broker-{one.broker_id}.conf").write_text(text, encoding="utf-8")


def _target(to: str, controllers: str | None = None) -> "Target":
    """Return where the group goes. `controllers`: the option; None: the verb has none."""
    from brokergroup_operator.migrate.departure import Target

    values = [one.value for one in Target]
    if to not in values:
        raise typer.BadParameter(f"is {to!r}, expected {' or '.join(values)}", param_hint="--to")
    target = Target(to)
    if controllers is not None and bool(controllers) != (target is Target.JAVA_CONTROLLER):
        expected = "host:port of the Java controllers" if target is Target.JAVA_CONTROLLER else "none, for static roles"
        raise typer.BadParameter(f"is {controllers!r}, expected {expected}", param_hint="--controller-addr")
    return target


def show(adoption: "Adoption") -> None:
    """Print the plan; end with exit code 2 if something blocks it."""
    for line in adoption.lines():
        typer.echo(line)
    if adoption.blocked:
        typer.echo("adopt: blocked, nothing was done", err=True)
        raise typer.Exit(REFUSED)


def _show_changes(read: "Callable[[], list[Change]]", say: Path | None) -> None:
    told = [change.what for change in _or_refusal(read, say) if change.what]
    for line in told or ["the store has all of it already"]:
        typer.echo(f"  {line}")
    typer.echo("nothing was done: say --yes to do it")


def _say_report(read: "Callable[[], StoreReport]", say: Path | None) -> None:
    import msgspec

    text = msgspec.json.encode(_or_refusal(read, say)).decode()
    if say is not None:
        say.write_text(text, encoding="utf-8")
    typer.echo(text)


def _or_refusal(read: "Callable[[], T]", say: Path | None) -> "T":
    """Return what was read; end with exit code 2 and the fault if the store is refused."""
    from brokergroup_operator.migrate.stores import StoreError

    try:
        return read()
    except (StoreError, OSError) as error:
        if say is not None:
            say.write_text(str(error), encoding="utf-8")
        typer.echo(f"adopt: {error}", err=True)
        raise typer.Exit(REFUSED) from error


def _read(path: Path) -> "NamedStore":
    import msgspec

    from brokergroup_operator.migrate.adopt import NamedStore
    from brokergroup_operator.migrate.stores import StoreReport

    try:
        report = msgspec.json.decode(path.read_bytes(), type=StoreReport)
    except (OSError, msgspec.MsgspecError) as error:
        raise typer.BadParameter(
            f"{path}: {error}; expected what `adopt check` printed", param_hint="REPORTS"
        ) from error
    return NamedStore(name=path.name, said=report)
