"""Runs a command's coroutine until SIGTERM or SIGINT asks it to stop."""

import asyncio
import errno
import signal
from collections.abc import Awaitable, Callable

import typer
import uvloop

# How binding an address ends that is taken, or not ours.
_CANNOT_BIND = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})


def run_until_signalled(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `run(stop)` on uvloop; the first SIGTERM or SIGINT sets `stop`, and `run` ends in its own time.

    An address that cannot be bound is told in one line, with exit code 1.
    """

    async def main() -> None:
        # Kopf cancels every task it does not know when it ends; ours are known to it by this prefix.
        task = asyncio.current_task()
        if task is not None:
            task.set_name("rmq:main")
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await run(stop)

    try:
        uvloop.run(main())
    except OSError as error:
        if error.errno not in _CANNOT_BIND:
            raise
        typer.echo(f"error: {error.strerror}", err=True)
        raise typer.Exit(1) from error
