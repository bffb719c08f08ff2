"""`brokergroup demo`: watch a broker group fail over twice, and count what was lost."""

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

ROCKETMQ_VERSION = "5.5.0"


def demo(
    *,
    once: Annotated[bool, typer.Option("--once", help="End by itself; the last line is one JSON object")] = False,
    implementation: Annotated[
        Literal["replica", "rocketmq"], typer.Option("--implementation", help="Python replicas, or Java brokers (root)")
    ] = "replica",
    directory: Annotated[Path, typer.Option("--directory", help="Made anew: volumes, logs, kubeconfig")] = Path(
        ".demo"
    ),
    pace_seconds: Annotated[
        float, typer.Option("--pace-seconds", help="Peace before each fault", min=0.0, max=30.0)
    ] = 2.0,
    manifest: Annotated[Path | None, typer.Option("--manifest", help="The BrokerGroup to apply")] = None,
) -> None:
    """Start a sandbox, the operator and a group; kill its master, freeze the next; read everything back."""
    from brokergroup_operator.cli.signals import run_until_signalled
    from brokergroup_operator.demo.processes import DemoProcessError
    from brokergroup_operator.demo.run import DemoResult, DemoSettings, run_demo
    from brokergroup_operator.demo.scenario import DemoStoppedError, DemoTimeoutError
    from brokergroup_operator.sandbox.kubelet.images import installed_rocketmq_homes

    java = implementation == "rocketmq"
    rocketmq_home = installed_rocketmq_homes().get(ROCKETMQ_VERSION) if java else None
    if java and rocketmq_home is None:
        typer.echo(
            f"demo: RocketMQ {ROCKETMQ_VERSION} is not in the cache of real parts; `make demo-real` brings it", err=True
        )
        raise typer.Exit(2)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    settings = DemoSettings(
        directory=directory.resolve(),
        manifest=manifest or Path("examples") / ("rocketmq.yaml" if java else "quickstart.yaml"),
        once=once,
        rocketmq_home=rocketmq_home,
        pace_seconds=pace_seconds,
    )
    results: list[DemoResult] = []
    started = time.monotonic()

    async def run(stop: asyncio.Event) -> None:
        results.append(await run_demo(settings, stop))

    try:
        run_until_signalled(run)
    except (DemoProcessError, DemoTimeoutError) as error:
        typer.echo(f"demo: {error}", err=True)
        raise typer.Exit(2) from error
    except DemoStoppedError as error:
        typer.echo(f"demo: ended while {error}: no verdict", err=True)
        raise typer.Exit(130) from error
    [result] = results
    typer.echo(f"demo: took {time.monotonic() - started:.1f} s", err=True)
    typer.echo(json.dumps(result.document))
    raise typer.Exit(0 if result.holds else 1)
