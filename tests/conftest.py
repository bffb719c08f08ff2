"""Real parts, left out or demanded: the marker `real`, and the count that ends a test run.

A test that needs more than Python names it: `@pytest.mark.real("java", "rocketmq")`. Where a part is missing the test is
left out and told so, never counted as passed; under `REQUIRE_REAL=1` it fails instead. `$BROKERGROUP_TEST_REPORT` names
a file that gets `{"passed": n, "failed": n, "left_out": [{"what", "why"}]}`, which tests/run.py adds up.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
from collections import Counter as Counts
from pathlib import Path

import pytest

from tests.left_house import LeftHouses
from tests.real.parts import install
from tests.support import draws, longer, order


def real_is_required() -> bool:
    """Whether this run may leave nothing out."""
    return os.environ.get("REQUIRE_REAL") == "1"


@functools.cache
def missing_part(name: str) -> str | None:
    """Why a part is not here; asked once per run, for asking may start a program."""
    return install.missing(name)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Before any hook that reads markers: xdist names the groups in `pytest_collection_modifyitems`."""
    if longer.is_longer(item.nodeid):
        item.add_marker("longer")
    if longer.is_nightly(item.nodeid):
        item.add_marker("nightly")
    order.mark(item)


@pytest.hookimpl(trylast=True)  # after pytest's own order by fixtures
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A marker that names no part, or one that nobody knows, is a mistake in the test: stop before running anything."""
    for item in items:
        for marker in item.iter_markers("real"):
            if not marker.args or any(name not in install.PARTS for name in marker.args):
                expected = ", ".join(install.PARTS)
                raise pytest.UsageError(
                    f"{item.nodeid}: marker real{marker.args!r}: expected one or more of {expected}"
                )
    order.arrange(items, config.rootpath)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("real"):
        for name in marker.args:
            why = missing_part(name)
            if why is None:
                continue
            if real_is_required():
                pytest.fail(f"REQUIRE_REAL=1, and the real part {name} is missing: {why}", pytrace=False)
            pytest.skip(f"the real part {name} is missing: {why}")


class Counter:
    """Counts each test once: failed if any of its phases failed, left out if skipped or expected to fail, else passed.

    What was collected and has no outcome, in a run that was interrupted, is left out too, file by file.
    """

    def __init__(self, target: Path, config: pytest.Config) -> None:
        self.target = target
        self.config = config
        self.passed: set[str] = set()
        self.failed: set[str] = set()
        self.left_out: dict[str, str] = {}
        self.collected: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)  # of xdist, whose workers collect, each all of it
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.collected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
            self._tell(report)
        elif report.skipped:
            self.left_out[report.nodeid] = why_skipped(report)
        elif report.when == "call":
            self.passed.add(report.nodeid)

    def _tell(self, report: pytest.TestReport) -> None:
        """At once: pytest tells what failed at its end, and a run that is interrupted has none."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = (report.longreprtext if crash is None else crash.message).strip().partition("\n")[0]
            reporter.write_line(f"\nfailed ({report.when}): {report.nodeid}: {why}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped:
            self.left_out[report.nodeid] = why_skipped(report)

    def pytest_sessionfinish(self) -> None:
        left_out = [{"what": what, "why": why} for what, why in self.left_out.items() if what not in self.failed]
        left_out += self.not_run()
        counts = {"passed": len(self.passed - self.failed), "failed": len(self.failed), "left_out": left_out}
        self.target.write_text(json.dumps(counts), encoding="utf-8")

    def not_run(self) -> list[dict[str, str]]:
        """Thousands of names would hide what else the last line of a run says."""
        without_outcome = self.collected - self.passed - self.failed - self.left_out.keys()
        files = Counts(name.partition("::")[0] for name in without_outcome)
        return [{"what": file, "why": f"not run: {many} of its tests"} for file, many in sorted(files.items())]


def why_skipped(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason given at the skip, or at the expected failure."""
    expected_failure = getattr(report, "wasxfail", None)
    if expected_failure is not None:
        return f"expected to fail: {expected_failure or 'no reason given'}"
    where = report.longrepr
    return where[2].removeprefix("Skipped: ") if isinstance(where, tuple) else str(where)


def refuse_golden_writes() -> None:
    """Files that a person has read are written anew by a person: a run of CI would write what it should compare."""
    if os.environ.get("UPDATE_GOLDEN") and (real_is_required() or os.environ.get("CI", "") not in {"", "0", "false"}):
        raise pytest.UsageError(
            "UPDATE_GOLDEN is set in CI (CI or REQUIRE_REAL=1): expected it unset, or a run by hand"
        )


def pytest_configure(config: pytest.Config) -> None:
    refuse_golden_writes()
    # A run that was started by nohup ignores SIGHUP, and so would every program that a test starts and then hangs up on.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    draws.load_profile()
    # looptime asks for the event loop of every test, also of one that needs none: asked first, asyncio makes a loop
    # that nobody closes, and the warning about it fails whatever test runs when it is collected. Said once that there
    # is none, it makes none.
    asyncio.set_event_loop(None)
    config.pluginmanager.register(LeftHouses(), "brokergroup-left-houses")
    target = os.environ.get("BROKERGROUP_TEST_REPORT")
    if target and not hasattr(config, "workerinput"):  # with xdist, the one that hands out the tests counts
        config.pluginmanager.register(Counter(Path(target), config), "brokergroup-counter")
