"""The checks of an operator that goes and comes back: a changed spec is seen, groups serve on meanwhile, the install page works."""

from __future__ import annotations

import time

from brokergroup_operator.kubectl.command_line import NotProvedError
from brokergroup_operator.kubectl.its_operator import silent_for
from tests.node.acts import EXAMPLES, RELEASE, change, plugin, under_load, wait_for_operator
from tests.node.bench import STEADY_SECONDS, Bench, Group, epoch_of, expect, operator_pods
from tests.node.cluster import OPERATOR_NAMESPACE
from tests.node.install_page import follow
from tests.node.kubectl import CHART, get, helm, kubectl, until
from tests.node.places import REPOSITORY
from tests.node.processes import command

OBSERVED_SECONDS = 5.0
# The plugin believes a Lease for its duration and 30 s more (its_operator.py); this is longer.
LEASE_STALE_SECONDS = 90.0
# The blocks of docs/tasks/install.md, in its order.
INSTALL_PAGE = ("install", "first-group", "plugin", "upgrade", "uninstall", "release")


def spec_change(bench: Bench) -> None:
    """A changed spec reaches the status soon: by the watch, not only by the resync."""
    group = bench.groups["replica"]
    master = group.status()["master"]["brokerId"]
    took = [change(group, {"failover": {"preferredMaster": wanted}}) for wanted in (master, None, master, None)]
    bench.seconds["spec_change_observed"] = max(took)
    expect(max(took) < OBSERVED_SECONDS, f"observed after {took} s: expected less than {OBSERVED_SECONDS:g} s each")


def uninstall_and_install(bench: Bench) -> None:
    """Without an operator the groups continue to serve; a new one adopts them unchanged."""

    def act() -> None:
        helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait")
        until("the operator is gone", lambda: not operator_pods())
        time.sleep(STEADY_SECONDS)
        for group in bench.groups.values():
            tells_that_nobody_judges(group)
        helm("install", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE)
        wait_for_operator()

    epochs = {group: epoch_of(group.status()) for group in bench.groups.values()}
    under_load(bench, "reinstall", act)
    spec_change(bench)
    changed = {
        group.name: (epoch, now) for group, epoch in epochs.items() if (now := epoch_of(group.status())) != epoch
    }
    expect(all(now > epoch for epoch, now in changed.values()), f"an epoch fell: {changed}")


def wait_until_lease_is_free() -> None:
    """Wait until an uninstalled operator's Lease is released or stale."""
    lease = ("lease", RELEASE, "--namespace", OPERATOR_NAMESPACE)
    until("the operator's Lease is given back or stale", lambda: silent_for(get(*lease)["spec"]), LEASE_STALE_SECONDS)


def tells_that_nobody_judges(group: Group) -> None:
    """Without an operator `explain` does not claim FailoverSafe, and `status` shows the age of its data."""
    wait_until_lease_is_free()
    explained, shown = plugin("explain", group.name), plugin("status", group.name)
    expect(
        explained.returncode == NotProvedError.exit_code and f"{group.name} WAS FailoverSafe" in explained.stdout,
        f"explain {group.name} without an operator: exit code {explained.returncode}: {explained.stdout}{explained.stderr}",
    )
    expect(
        shown.returncode == 0 and "ago, and nothing proves that it still holds" in shown.stdout,
        f"status {group.name} without an operator: exit code {shown.returncode}: {shown.stdout}{shown.stderr}",
    )


def install_page(bench: Bench) -> None:
    """Run docs/tasks/install.md unchanged in an empty cluster: first remove the chart's objects and both groups."""
    for group in bench.groups.values():
        began = time.monotonic()
        kubectl("delete", "brokergroup", group.name, "--ignore-not-found", "--timeout=180s", seconds=190)
        bench.seconds[f"deletion_of_{group.label}_group"] = round(time.monotonic() - began, 1)
    helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait")
    kubectl("delete", "-f", str(EXAMPLES / "nameserver.yaml"), "--wait=true")
    # Without the arguments of `make test-node` itself.
    command("make", "-C", str(REPOSITORY), "dist", "ARGUMENTS=", seconds=600)
    *page, release = INSTALL_PAGE
    follow(page)
    # The last block is for an operator that was removed first.
    follow(("install", "first-group"))
    helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait")
    # Its rights ended with the chart, so its last pod could not release the Lease: `release` refuses until that is stale.
    wait_until_lease_is_free()
    follow((release,))
