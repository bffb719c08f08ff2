"""Runs a command's coroutine until a signal asks it to stop, or the end of the process that started it."""

import asyncio
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import typer
import uvloop

# How binding an address ends that is taken, or not ours.
_CANNOT_BIND = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})
# What a command has to end in good order when its parent is dead; then it is killed, for no process is left to do it.
_ORPHAN_SECONDS = 20.0


def run_until_signalled(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `run(stop)` on uvloop; the first SIGTERM, SIGINT or SIGHUP sets `stop`, and `run` ends in its own time.

    SIGHUP (the terminal was closed) stays ignored where it is, as `nohup` asks. An address that cannot be bound is told in one
    line, with exit code 1.
    """

    async def main() -> None:
        # Kopf cancels every task it does not know when it ends; ours are known to it by this prefix.
        task = asyncio.current_task()
        if task is not None:
            task.set_name("rmq:main")
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, stop.set)
        await run(stop)

    try:
        uvloop.run(main())
    except OSError as error:
        if error.errno not in _CANNOT_BIND:
            raise
        typer.echo(f"error: {error.strerror}", err=True)
        raise typer.Exit(1) from error


def stop_signals() -> list[signal.Signals]:
    """The signals that ask a command to stop."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


def end_with_standard_input() -> None:
    """From now on the end of standard input ends this process: SIGTERM to itself, then, 20 s later, SIGKILL.

    For children of a process that may die without a word: it holds the other end of the pipe, and the kernel closes it. A thread
    reads, so that a loop that hangs is ended too.
    """

    def watch() -> None:
        descriptor = sys.stdin.fileno()
        while os.read(descriptor, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHAN_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end of standard input", daemon=True).start()
