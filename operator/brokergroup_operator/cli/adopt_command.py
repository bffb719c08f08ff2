"""`brokergroup adopt`: the stores of another deployment, static roles or a controller's, become a group's (docs/tasks/adopt.md).

`check` and `begin` without --yes change nothing; `prepare` changes one stopped broker's store.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from collections.abc import Callable

    from brokergroup_operator.migrate.adopt import Adoption, NamedStore
    from brokergroup_operator.migrate.quiet import StaticGroup
    from brokergroup_operator.migrate.stores import StoreReport

app = typer.Typer(
    help="Go on with the stores of brokers that had static roles, or another controller.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(dledger_command.app, name="dledger")

Folder = Annotated[str, typer.Option("--folder", help="Where in it the store is; default: it is the store itself")]
Say = Annotated[
    Path | None, typer.Option("--say", help="Write the answer, or the fault, to this file too (a termination message)")
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

    def show_group(group: "StaticGroup") -> None:
        for line in group.lines():
            typer.echo(line)
        blocked.extend([group.broker_name] if group.blocked else [])

    steps = Steps(command="adopt")
    source = given.of_brokers()
    run_to_exit_code(run.quiet(source, report=steps, seconds=seconds, yes=yes, show=show_group), steps)
    if blocked:
        raise typer.Exit(REFUSED)
    typer.echo("stop them now, slaves after the master" if yes else "nothing was done: say --yes to do it")


@app.command("check")
def check(
    store: Annotated[Path, typer.Argument(help="storePathRootDir of a stopped broker")],
    folder: Folder = "",
    say: Say = None,
) -> None:
    """Print what a store's files say, as JSON for `begin`. Nothing is changed."""
    from brokergroup_operator.migrate.stores import Place, inspect

    _say_report(lambda: inspect(Place(store, folder)), say)


@app.command("prepare")
def prepare(
    store: Annotated[Path, typer.Argument(help="storePathRootDir of a stopped broker")],
    cluster: ClusterName,
    broker_name: BrokerName,
    broker_id: Annotated[int, typer.Option("--broker-id", min=1, help="As `begin` lists it")],
    folder: Folder = "",
    say: Say = None,
) -> None:
    """Write the store's identity, and its first epoch if it has none: its broker can then start in controller mode."""
    from brokergroup_operator.migrate.stores import Identity, Place
    from brokergroup_operator.migrate.stores import prepare as make_ready

    holder = Identity(cluster_name=cluster, broker_name=broker_name, broker_id=broker_id)
    _say_report(lambda: make_ready(Place(store, folder), holder), say)


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
    adoption, spec = run_to_exit_code(run.take_claims(wish, kubeconfig=kubeconfig, report=steps, yes=yes), steps)
    show(adoption)
    if not yes:
        typer.echo("nothing was done: say --yes to do it")
        return
    typer.echo(f"create BrokerGroup {namespace}/{group} now, with:\n{spec}")


def show(adoption: "Adoption") -> None:
    """Print the plan; end with exit code 2 if something blocks it."""
    for line in adoption.lines():
        typer.echo(line)
    if adoption.blocked:
        typer.echo("adopt: blocked, nothing was done", err=True)
        raise typer.Exit(REFUSED)


def _say_report(read: "Callable[[], StoreReport]", say: Path | None) -> None:
    import msgspec

    from brokergroup_operator.migrate.stores import StoreError

    try:
        text = msgspec.json.encode(read()).decode()
    except (StoreError, OSError) as error:
        if say is not None:
            say.write_text(str(error), encoding="utf-8")
        typer.echo(f"adopt: {error}", err=True)
        raise typer.Exit(REFUSED) from error
    if say is not None:
        say.write_text(text, encoding="utf-8")
    typer.echo(text)


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
