"""Real parts, optional or required: the marker `real`, and the lane of the proofs that runs its tests.

A test that needs more than Python names its parts: `@pytest.mark.real("java", "rocketmq")`. Without a part the test is skipped
with the reason, never counted as passed; under `REQUIRE_REAL=1` it fails instead. Each real test gets the marker of exactly one
lane of tests/lanes.py, by the parts that it names.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest
import structlog
import typer.testing

from tests.lanes import lane_of
from tests.left_house import LeftHouses
from tests.real.parts import install
from tests.support import draws, order, virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator


def real_is_required() -> bool:
    """Whether this run must not skip tests."""
    return os.environ.get("REQUIRE_REAL") == "1"


@functools.cache
def missing_part(name: str) -> str | None:
    """Return why a part is missing, else None; cached for the run, as the check may start a program."""
    return install.missing(name)


@functools.cache
def missing_ipv6() -> str | None:
    """Return why this machine has no ::1, else None."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return str(error)
    return None


@pytest.fixture
def ipv6_loopback() -> str:
    """``::1``. Without it, as in many containers, these tests are skipped, with the way to get it; REQUIRE_REAL=1 forbids that."""
    if (why := missing_ipv6()) is not None:
        told = (
            f"::1 cannot be bound: {why}. Expected IPv6 on lo (sysctl -w net.ipv6.conf.lo.disable_ipv6=0; docker run"
            " --sysctl net.ipv6.conf.all.disable_ipv6=0)"
        )
        if real_is_required():
            pytest.fail(told, pytrace=False)
        pytest.skip(told)
    return "::1"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore logging: a command that a test runs in this process configures it for the whole process."""
    root, before, was_configured = logging.getLogger(), structlog.get_config(), structlog.is_configured()
    handlers, level = list(root.handlers), root.level
    yield
    if structlog.get_config() != before:
        structlog.configure(**before) if was_configured else structlog.reset_defaults()
    if root.handlers != handlers or root.level != level:
        root.handlers[:] = handlers
        root.setLevel(level)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Set markers before the hooks that read them: xdist and `-m` do so in `pytest_collection_modifyitems`."""
    if real := list(item.iter_markers("real")):
        try:
            item.add_marker(lane_of({part for marker in real for part in marker.args}))
        except ValueError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from error
    order.mark(item)


@pytest.hookimpl(trylast=True)  # after pytest's own order by fixtures
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the longest first."""
    order.arrange(items, config.rootpath)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    virtual_time.test_now = item
    for marker in item.iter_markers("real"):
        for name in marker.args:
            why = missing_part(name)
            if why is None:
                continue
            if real_is_required():
                pytest.fail(f"REQUIRE_REAL=1, and the real part {name} is missing: {why}", pytrace=False)
            pytest.skip(f"the real part {name} is missing: {why}")


def refuse_golden_writes() -> None:
    """Refuse to rewrite golden files in CI: a person reads and writes them, and CI compares with them."""
    if os.environ.get("UPDATE_GOLDEN") and (real_is_required() or os.environ.get("CI", "") not in {"", "0", "false"}):
        raise pytest.UsageError(
            "UPDATE_GOLDEN is set in CI (CI or REQUIRE_REAL=1): expected it unset, or a run by hand"
        )


def pytest_configure(config: pytest.Config) -> None:
    refuse_golden_writes()
    # A run under nohup ignores SIGHUP, and so would every program that a test starts and then ends by SIGHUP.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    draws.load_profile()
    # typer's CliRunner builds the command of an app for each call, 40 ms: here once in a process.
    typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]
    config.pluginmanager.register(LeftHouses(), "brokergroup-left-houses")
