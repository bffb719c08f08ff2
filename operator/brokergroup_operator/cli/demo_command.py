"""`brokergroup demo`: watch a broker group fail over twice, and count what was lost."""

import asyncio
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from brokergroup_operator.demo.run import DemoSettings

ROCKETMQ_VERSION = "5.5.0"
_DIRECTORY = Path(".demo")
# As a shell reports a process that SIGHUP ended.
_HUNG_UP = 129
_TERMINAL_LOOK_SECONDS = 1.0


def demo(
    *,
    once: Annotated[bool, typer.Option("--once", help="End by itself; the last line is one JSON object")] = False,
    implementation: Annotated[
        Literal["Python", "Java"], typer.Option("--implementation", help="Python replicas, or Java brokers (root)")
    ] = "Python",
    directory: Annotated[Path, typer.Option("--directory", help="Made anew: volumes, logs, kubeconfig")] = _DIRECTORY,
    pace_seconds: Annotated[
        float, typer.Option("--pace-seconds", help="Peace before each fault", min=0.0, max=30.0)
    ] = 2.0,
    manifest: Annotated[Path | None, typer.Option("--manifest", help="The BrokerGroup to apply")] = None,
    page_port: Annotated[
        int, typer.Option("--page-port", help="Port of the page on 127.0.0.1; 0: one that is free", min=0, max=65535)
    ] = 0,
) -> None:
    """Start a sandbox, the operator and a group; kill its master, freeze the next; read everything back."""
    from brokergroup_operator.demo.our_sandbox import installed_rocketmq_homes
    from brokergroup_operator.demo.preparation import (
        DemoFolderError,
        DemoManifestError,
        demo_folder,
        logging_to,
        read_broker_group,
    )
    from brokergroup_operator.demo.processes import free_port
    from brokergroup_operator.demo.run import DemoSettings

    java = implementation == "Java"
    rocketmq_home = installed_rocketmq_homes().get(ROCKETMQ_VERSION) if java else None
    if java and rocketmq_home is None:
        raise _fail(f"RocketMQ {ROCKETMQ_VERSION} is not in the cache of real parts; `make demo-real` brings it")
    try:
        group = read_broker_group(manifest or Path("examples") / ("rocketmq.yaml" if java else "quickstart.yaml"))
        with demo_folder(directory.resolve()) as lock, logging_to(lock.file.parent / "logs" / "demo.log"):
            settings = DemoSettings(
                directory=directory.resolve(),
                lock_descriptor=lock.descriptor,
                manifest=group,
                once=once,
                rocketmq_home=rocketmq_home,
                pace_seconds=pace_seconds,
                page_port=page_port or free_port(),
            )
            typer.echo(f"demo: watch it at {settings.page_address}", err=True)
            typer.echo(
                f"demo: logs are in {directory / 'logs'}; this process's own is {directory / 'logs' / 'demo.log'}",
                err=True,
            )
            _play(settings, shown_directory=directory)
    except (DemoFolderError, DemoManifestError) as error:
        raise _fail(str(error)) from error


def _play(settings: "DemoSettings", *, shown_directory: Path) -> None:
    from brokergroup_operator.cli.running import run_until_signalled, stop_signals
    from brokergroup_operator.demo.client import ReadbackError
    from brokergroup_operator.demo.processes import DemoProcessError
    from brokergroup_operator.demo.run import DemoResult, run_demo
    from brokergroup_operator.demo.scenario import DemoStoppedError, DemoTimeoutError

    results: list[DemoResult] = []
    started = time.monotonic()

    async def run(stop: asyncio.Event) -> None:
        if signal.SIGHUP not in stop_signals():
            results.append(await run_demo(settings, stop))
            return
        _cancel_at_hang_up()
        look = asyncio.create_task(_tell_of_a_closed_terminal(), name="rmq:terminal")
        try:
            results.append(await run_demo(settings, stop))
        finally:
            look.cancel()

    try:
        run_until_signalled(run)
    except (DemoProcessError, DemoTimeoutError, ReadbackError) as error:
        raise _fail(str(error)) from error
    except DemoStoppedError as error:
        typer.echo(f"demo: ended while {error}: no verdict", err=True)
        raise typer.Exit(130) from error
    except asyncio.CancelledError as error:
        raise typer.Exit(_HUNG_UP) from error
    [result] = results
    typer.echo(f"demo: took {time.monotonic() - started:.1f} s", err=True)
    typer.echo(f"demo: availability and recovery times of this run: {_report_command(shown_directory)}", err=True)
    typer.echo(json.dumps(result.document))
    raise typer.Exit(0 if result.holds else 1)


def _report_command(directory: Path) -> str:
    if directory == _DIRECTORY:
        return "make sla-report"
    files = f"--prometheus-export {directory / 'prometheus.json'} --incidents {directory / 'incidents.jsonl'}"
    return f"brokergroup sla report {files} --out {directory / 'report'}"


def _cancel_at_hang_up() -> None:
    """At SIGHUP (the terminal was closed) cancel the demo without a verdict. make may send the signal twice."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def hang_up() -> None:
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        if task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGHUP, hang_up)


async def _tell_of_a_closed_terminal() -> None:
    """Send SIGHUP to this process when its terminal is closed: the kernel sends it only to make, which then waits for the demo."""
    poll = select.poll()
    for descriptor in (0, 1, 2):
        if os.isatty(descriptor):
            poll.register(descriptor, 0)
    while True:
        if poll.poll(0):
            os.kill(os.getpid(), signal.SIGHUP)
            return
        await asyncio.sleep(_TERMINAL_LOOK_SECONDS)


def _fail(message: str) -> typer.Exit:
    typer.echo(f"demo: {message}", err=True)
    return typer.Exit(2)
