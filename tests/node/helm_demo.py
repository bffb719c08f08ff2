"""Two real nodes: both charts by helm, a first message through the Proxy, and uninstalled clean.

    python -m tests.node.helm_demo

It runs the blocks of README's "On your cluster" as they stand; brokers only get values that fit on one small machine.
`first_message_s` counts from the start of the first `helm install`, on two Ready nodes that have the images, until the gRPC
client has received and acknowledged the message that it sent to the Proxy's Service. It includes the start of that client, and
excludes the start of the nodes, the build and import of images, and the installation of the client.

The last line of standard output is JSON; the exit code is 0 only if its `why` is empty. A cluster that was up before stays up,
without the claims, records and kinds of this run; it is refused if it has a release, a kind or a claim of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.node.acts import RELEASE
from tests.node.bench import Bench, expect
from tests.node.cluster import GROUPS_NAMESPACE, OPERATOR_NAMESPACE, say
from tests.node.evidence import RECORDS, keep_brokers_labelled, keep_what_runs
from tests.node.install_page import REGISTRY
from tests.node.kubectl import get, helm, kubectl, kubectl_run, run_commands, until
from tests.node.leftovers import claims, delete_what_stays, inventory, left_over
from tests.node.places import REPOSITORY, nodes
from tests.node.processes import NodeError
from tests.node.records import OperatorRecords
from tests.node.whole_cluster import BROKERS, GONE_SECONDS, LABEL, NAME, SMALL_BROKERS, GrpcClient
from tests.node.whole_run import ERRORS, run_on_two_nodes, told
from tests.support.page_blocks import page_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = REPOSITORY / "README.md"
# Its blocks, in its order.
INSTALL, UNINSTALL = BLOCKS = ("install-shop", "uninstall-shop")
# From the issue.
BOUND_SECONDS = 120.0
# Longer than the page's own timeouts.
COMMAND_SECONDS = 630.0
GRPC_PORT = 8081


@dataclass
class Demo:
    """What one run has seen so far."""

    steps: list[tuple[str, float]] = field(default_factory=list)
    first_message_s: float | None = None
    sent: int = 0
    received: int = 0
    # Claims of the groups before and after the cluster was uninstalled; None until they are counted.
    claims: int | None = None
    claims_kept: int | None = None
    # Objects beyond those of before; None until the uninstalling has ended.
    left: list[str] | None = None
    failed: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step. A failed one is measured and named too."""
        began = time.monotonic()
        say(f"{name} …")
        try:
            yield
        except ERRORS as error:
            self.failed[name] = told(error)
            raise
        finally:
            self.steps.append((name, round(time.monotonic() - began, 1)))
            say(f"{name}: {self.steps[-1][1]} s")


def verdict(demo: Demo) -> dict[str, Any]:
    """Return the line of JSON. `why` is empty only if the message came within the bound, and only claims and records are left."""
    why, lost = dict(demo.failed), demo.sent - demo.received
    if not demo.sent:
        why["sent"] = "no message was acknowledged through the Proxy: expected one"
    if lost:
        why["lost"] = f"{lost} acknowledged and not received"
    if demo.first_message_s is None:
        why["first_message_s"] = "no message was received through the Proxy"
    elif demo.first_message_s > BOUND_SECONDS:
        why["first_message_s"] = f"{demo.first_message_s} s: expected at most {BOUND_SECONDS:g} s"
    if demo.left is None:
        why["left"] = "the releases were not uninstalled to the end"
    elif demo.left:
        why["left"] = f"{len(demo.left)} objects are left: {', '.join(demo.left[:5])}"
    if not demo.claims or demo.claims_kept != demo.claims:
        why["claims"] = f"{demo.claims} claims, {demo.claims_kept} after helm uninstall: expected all of them"
    return {
        "first_message_s": demo.first_message_s,
        "bound_s": BOUND_SECONDS,
        "steps": [{"step": name, "seconds": seconds} for name, seconds in demo.steps],
        "sent": demo.sent,
        "lost": lost,
        "left": demo.left,
        "claims_kept": demo.claims_kept,
        "why": why,
    }


def commands_of(page: str, block: str) -> list[str]:
    """Return the lines of this block of the page. ValueError if it has none of this name, or two."""
    found = [one.commands for one in page_blocks(page) if (one.how, one.what) == ("test-node", block)]
    if len(found) != 1:
        raise ValueError(f"{len(found)} blocks {block}: expected one")
    return [line.strip() for line in found[0].splitlines() if line.strip()]


def name_of(line: str) -> str:
    """Return a command without its options."""
    return line.partition(" --")[0]


def with_small_brokers(line: str, values: Path) -> str:
    """Return the line that installs the cluster with these values too, any other as it is."""
    return f"{line} --values {values}" if line.startswith(f"helm install {NAME} ") else line


def run_line(demo: Demo, line: str, values: Path) -> None:
    """Run one line of the page as a step."""
    with demo.step(name_of(line)):
        text = with_small_brokers(line, values)
        run_commands(text, line, variables={"REGISTRY": REGISTRY}, seconds=COMMAND_SECONDS)


def install_and_send(demo: Demo, lines: Sequence[str], values: Path) -> None:
    """From the first helm command to the first message, which the client has sent and received."""
    began = time.monotonic()
    for line in lines:
        run_line(demo, line, values)
    with demo.step("first message"):
        # A Service's address exists on the nodes' networks only.
        address = get("service", f"{NAME}-proxy")["spec"]["clusterIP"]
        with GrpcClient(f"{address}:{GRPC_PORT}", nodes()[0].enter) as client:
            demo.sent, missing, told = client.exchange(0, 1)
            demo.received = demo.sent - len(missing)
            expect(not missing, f"sent through the Proxy and not received: {told}")
            demo.first_message_s = round(time.monotonic() - began, 1)
    say(kubectl("get", "rmq", NAME).rstrip())


def uninstall(demo: Demo, lines: Sequence[str], values: Path, before: set[str]) -> None:
    """Uninstall both releases by the page's lines; count the claims that stay, and all that is left beside them."""
    demo.claims = len(claims())
    for line in lines:
        run_line(demo, line, values)
    with demo.step("nothing left"):
        with contextlib.suppress(NodeError):
            until("nothing is left", lambda: not left_over(before, inventory()), GONE_SECONDS, 1.0)
        demo.left = left_over(before, inventory())
        demo.claims_kept = len(claims())


def tidy() -> None:
    """Delete what stays by intent, or by a failure, so that the next run starts from nothing on this cluster."""
    mine = claims()
    for release, namespace in ((NAME, GROUPS_NAMESPACE), (RELEASE, OPERATOR_NAMESPACE)):
        helm("uninstall", release, "--namespace", namespace, "--ignore-not-found", "--wait")
        # Groups need their operator to be deleted. Without the kinds there are none.
        kubectl_run("wait", "brokergroups", "-l", LABEL, "--for=delete", f"--timeout={GONE_SECONDS:g}s", seconds=190)
    delete_what_stays(mine)


def run_demo(demo: Demo) -> None:
    """Run the page's blocks on the empty cluster. After a failure, store what runs."""
    page = PAGE.read_text(encoding="utf-8")
    before = inventory()
    with tempfile.TemporaryDirectory(prefix="helm-demo-") as folder:
        values = Path(folder) / "small.yaml"
        values.write_text(yaml.safe_dump({"brokerGroups": {"template": SMALL_BROKERS}}), encoding="utf-8")
        try:
            install_and_send(demo, commands_of(page, INSTALL), values)
            uninstall(demo, commands_of(page, UNINSTALL), values, before)
        except ERRORS:
            keep_what_runs(RECORDS / "helm-demo", [])
            keep_brokers_labelled(RECORDS / "helm-demo", BROKERS, "Java")
            raise


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(arguments)
    began = time.monotonic()
    demo, bench = Demo(), Bench({}, OperatorRecords(OPERATOR_NAMESPACE))

    def act(_archive: Path) -> None:
        bench.records.start()
        run_demo(demo)

    run_on_two_nodes("demo", bench, demo.failed, act, tidy=tidy)
    line = verdict(demo) | {"nodes": len(nodes()), "seconds": round(time.monotonic() - began)}
    print(json.dumps(line))
    return 1 if line["why"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
