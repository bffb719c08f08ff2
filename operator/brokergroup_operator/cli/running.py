"""What the long-running commands share: addresses and stores on the command line, the options of the log, the end by a signal."""

import asyncio
import errno
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import structlog
import typer
import uvloop

from rocketmq_remoting.address import Address, AddressError

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
DrainSeconds = Annotated[
    float, typer.Option("--drain-seconds", min=0.0, help="While stopping, send brokers elsewhere for so long")
]
# kopf reports each handler's success at INFO: below --log-level debug, libraries write from WARNING on.
LIBRARIES_LEVEL = logging.WARNING
# The errors of an address that is in use, or not this machine's.
_CANNOT_BIND = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})
# How long a command may take to stop after its parent died, before it is killed: no process is left to kill it.
_ORPHAN_SECONDS = 20.0
# A whole search for cycles stops the process, for half a second where a thousand groups live: after this time at the latest, and
# when half as many objects and this many more were left out since the last one (a closed connection is 21, and may be among them).
WHOLE_COLLECTION_SECONDS = 600.0
WHOLE_COLLECTION_OBJECTS = 50_000
# After how long a thread that computes (kopf's) lets the event loop run: Python's own 5 ms delayed the steps of a failover.
SWITCH_INTERVAL_SECONDS = 0.0005


def parse_endpoint(text: str, option: str) -> tuple[str, int]:
    """Return host and port to listen at; port 0 takes a free one. typer.BadParameter names option, value and what was expected."""
    found = _parsed(text, option, any_port=True)
    return found.host, found.port


def parse_address(text: str, option: str) -> str:
    """Return the address of a server to dial, in its one spelling. typer.BadParameter as above."""
    return str(_parsed(text, option, any_port=False))


def _parsed(text: str, option: str, *, any_port: bool) -> Address:
    try:
        return Address.parse(text, option, any_port=any_port)
    except AddressError as error:
        raise typer.BadParameter(f"{text!r}: expected {error.expected}", param_hint=option) from None


def check_store(text: str) -> None:
    """Raise typer.BadParameter unless the text names a kind of record store."""
    from brokergroup_operator.records.stores import parse_store

    try:
        parse_store(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--store") from error


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """How the process writes its log."""

    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Lines below this level are left out")] = "info"
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", help="json: one object a line, with timestamp, level, event and the values"),
    ] = "text"


def configure_logging(options: LogOptions) -> None:
    """Let structlog and the standard library write to standard output, in one format."""
    threshold = logging.getLevelNamesMapping()[options.log_level.upper()]
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[Any] = [structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty())]
    if options.log_format == "json":
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stdout)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared], processors=[remove_meta, *renderers]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold if options.log_level == "debug" else max(threshold, LIBRARIES_LEVEL))


def run_until_signalled(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `run(stop)` on uvloop; the first SIGTERM, SIGINT or SIGHUP sets `stop`, and `run` stops in its own time.

    A SIGHUP that is ignored (`nohup`) stays ignored. An address that cannot be bound is one line, and exit code 1.
    """

    async def main() -> None:
        # Kopf cancels all tasks when it ends, except those with this prefix.
        task = asyncio.current_task()
        if task is not None:
            task.set_name("rmq:main")
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, stop.set)
        await run(stop)

    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    collections = BriefCollections()
    gc.callbacks.append(collections)
    try:
        uvloop.run(main())
    except OSError as error:
        if error.errno not in _CANNOT_BIND:
            raise
        typer.echo(f"error: {error.strerror}", err=True)
        raise typer.Exit(1) from error
    finally:
        gc.callbacks.remove(collections)


class BriefCollections:
    """A member of `gc.callbacks` that keeps Python's searches for cycles short: what one found alive is left out of the next ones.

    Without it the oldest generation, all groups and connections, was searched every few seconds: 0.5 s with a thousand groups, in
    which heartbeats and elections waited. A cycle among what is left out is freed by the next whole collection.
    """

    def __init__(self) -> None:
        self._left_out_since = 0
        # None until the first search, which leaves alone what a list has left out already (`kube/reflector.py`).
        self._most_left_out_since: int | None = None
        self._due_seconds = time.monotonic() + WHOLE_COLLECTION_SECONDS
        self._is_whole = False

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            most = self._most_left_out_since
            is_full = most is not None and self._left_out_since > most
            self._is_whole = is_full or time.monotonic() >= self._due_seconds
            if self._is_whole:
                self._due_seconds = time.monotonic() + WHOLE_COLLECTION_SECONDS
                gc.unfreeze()
            return
        # Only what this search found: to count all that is left out takes as long as it is long (85 ms for two million).
        found = len(gc.get_objects(generation=2))
        gc.freeze()
        if self._is_whole or self._most_left_out_since is None:
            self._left_out_since, self._most_left_out_since = 0, found // 2 + WHOLE_COLLECTION_OBJECTS
        else:
            self._left_out_since += found


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a command."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


def end_with_standard_input() -> None:
    """Stop this process at the end of standard input: SIGTERM to itself, SIGKILL 20 s later.

    For a child whose parent holds the other end of the pipe: the kernel closes it when the parent dies. A thread reads, so that
    a hanging event loop is stopped too.
    """

    def watch() -> None:
        descriptor = sys.stdin.fileno()
        while os.read(descriptor, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHAN_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end of standard input", daemon=True).start()
