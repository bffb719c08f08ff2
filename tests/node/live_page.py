"""docs/tasks/page.md's `kubectl brokergroup dashboard` on the two nodes, as it stands there: forwarded by a kubelet, and opened."""

from __future__ import annotations

import os
import tempfile
import urllib.error
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.node.bench import expect
from tests.node.cluster import GROUPS_NAMESPACE
from tests.node.kubectl import environment, until
from tests.node.places import REPOSITORY
from tests.node.processes import NodeError
from tests.support.opened_page import PageNotOpenedError, document, group_on, opened_page
from tests.support.page_blocks import page_blocks

if TYPE_CHECKING:
    from tests.node.bench import Bench, Group

PAGE = REPOSITORY / "docs" / "tasks" / "page.md"
NAME = "dashboard"
# As the page says.
ADDRESS = "http://localhost:9880/"


def command_of_the_page() -> str:
    """The block of page.md that is marked for the nodes."""
    [block] = [one for one in page_blocks(PAGE.read_text(encoding="utf-8")) if one.how == "test-node"]
    return block.commands.strip()


def dashboard(bench: Bench) -> None:
    """The page of an operator's pod is opened through kube-apiserver and kubelet, and shows both groups; Ctrl-C ends it."""
    path = os.pathsep.join([environment()["PATH"], str(REPOSITORY / ".venv" / "bin")])
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dashboard-") as folder,
            opened_page(command_of_the_page(), {**environment(), "PATH": path}, Path(folder)) as address,
        ):
            expect(address == ADDRESS, f"{address} was opened: expected {ADDRESS}")
            expect("<title>Broker groups</title>" in document(address), f"{address} is not the live page")
            for group in bench.groups.values():
                until(f"the page shows {group.name} as its status does", partial(is_shown, address, group))
    except PageNotOpenedError as error:
        raise NodeError(str(error)) from error
    try:
        document(ADDRESS)
    except urllib.error.URLError:
        return
    raise NodeError(f"{ADDRESS} still answers after Ctrl-C")


def is_shown(address: str, group: Group) -> bool:
    """Whether master, epoch and members are those of the status; both may be a moment old."""
    shown, status = group_on(address, f"{GROUPS_NAMESPACE}/{group.name}"), group.status()
    is_same = (shown["master"], shown["epoch"]) == (status["master"]["brokerId"], status["master"]["epoch"])
    return is_same and {one["pod"] for one in shown["members"]} == {one["pod"] for one in status["members"]}
