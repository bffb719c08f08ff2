"""The inhibition of docs/tasks/monitoring.md, applied by a real Alertmanager: one cause, one page."""

from __future__ import annotations

import http.server
import json
import queue
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.real.parts import install
from tests.real.parts.process import RealProcessError, start
from tests.repository.test_runbooks import ALERTS, inhibit_rules
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real("alertmanager")

DEADLINE_SECONDS = 60.0
OF_NO_GROUP = {
    "BrokerGroupLabelsRenamed",
    "BrokerGroupOperatorDown",
    "BrokerGroupOperatorPodAlone",
    "BrokerGroupRequestsRefused",
}
SEVERITY = {rule["alert"]: rule["labels"]["severity"] for rule in ALERTS}
# Alerts of one cause, by the one that pages.
STORIES = {
    # The master died and no member could take over: nothing is written, and the only other member is not heard.
    "BrokerGroupNoMaster": {
        "BrokerGroupNotFailoverSafe",
        "BrokerGroupSyncStateSetShrunk",
        "BrokerGroupMembersUnheard",
        "BrokerGroupMembersUnlinked",
        "BrokerGroupReplicaLagHigh",
        "BrokerGroupStalled",
        "BrokerGroupBudgetBurn",
    },
    # A failover went well, and the member that died comes back slowly.
    "BrokerGroupSyncStateSetShrunk": {
        "BrokerGroupNotFailoverSafe",
        "BrokerGroupMembersUnheard",
        "BrokerGroupMembersUnlinked",
        "BrokerGroupReplicaLagHigh",
    },
    # After the failover every holder of acknowledged messages came back with less.
    "BrokerGroupSeatsLost": {
        "BrokerGroupNoMaster",
        "BrokerGroupNotFailoverSafe",
        "BrokerGroupSyncStateSetShrunk",
        "BrokerGroupStalled",
        "BrokerGroupBudgetBurn",
    },
    "BrokerGroupEpochJump": {"BrokerGroupNoMaster", "BrokerGroupNotFailoverSafe", "BrokerGroupStalled"},
    "BrokerGroupOperatorDown": {"BrokerGroupOperatorPodAlone", "BrokerGroupRequestsRefused"},
}


class Pager:
    """The webhook that an Alertmanager calls: each alert that it pages, by its name and group."""

    def __init__(self) -> None:
        pages: queue.Queue[tuple[str, str]] = queue.Queue()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in told["alerts"]:
                    pages.put(named(alert["labels"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None: ...  # noqa: A002 - the base class's name

        self._pages = pages
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def until(self, wanted: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Wait until all of these alerts are paged; return the pages so far."""
        paged: set[tuple[str, str]] = set()
        while not wanted <= paged:
            paged.add(self._pages.get(timeout=DEADLINE_SECONDS))
        return paged

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def named(labels: dict[str, str]) -> tuple[str, str]:
    return labels["alertname"], labels.get("broker_group", "")


def labels_of(alert: str, group: str) -> dict[str, str]:
    own = {} if alert in OF_NO_GROUP else {"namespace": "shop", "cluster": "c", "broker_group": group}
    return {"alertname": alert, "severity": SEVERITY.get(alert, "warning"), **own}


class Alertmanager:
    """A running one; each alert that it does not silence is a page of its own."""

    def __init__(self, folder: Path, pager: Pager) -> None:
        config = {
            "route": {"receiver": "pager", "group_by": ["..."], "group_wait": "1s"},
            "receivers": [{"name": "pager", "webhook_configs": [{"url": pager.url, "send_resolved": False}]}],
            "inhibit_rules": inhibit_rules(),
        }
        (folder / "alertmanager.yml").write_text(json.dumps(config), encoding="utf-8")
        address = f"127.0.0.1:{free_port()}"
        self._url = f"http://{address}/api/v2/alerts"
        files = [f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'data'}"]
        places = [f"--web.listen-address={address}", "--cluster.listen-address="]
        self._process = start(
            "alertmanager", [str(install.alertmanager_program()), *files, *places], log=folder / "alertmanager.log"
        )
        try:
            self._process.wait_until(self._is_ready, what="being ready")
        except RealProcessError:
            self.stop()
            raise

    def _is_ready(self) -> bool:
        try:
            return self.alerts() == []
        except OSError:
            return False

    def alerts(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def raise_together(self, *raised: dict[str, str]) -> None:
        body = json.dumps([{"labels": labels} for labels in raised]).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()

    def stop(self) -> None:
        self._process.stop()


@pytest.fixture
def pager() -> Iterator[Pager]:
    one = Pager()
    yield one
    one.close()


@pytest.fixture
def alertmanager(tmp_path: Path, pager: Pager) -> Iterator[Alertmanager]:
    one = Alertmanager(tmp_path, pager)
    yield one
    one.stop()


@pytest.mark.parametrize("cause", STORIES)
def test_what_one_cause_raises_is_one_page(alertmanager: Alertmanager, pager: Pager, cause: str) -> None:
    """A second group's alert is paged beside it: another group's trouble silences nothing."""
    other = labels_of("BrokerGroupNotFailoverSafe", "payments")
    alertmanager.raise_together(*(labels_of(alert, "orders") for alert in STORIES[cause] | {cause}), other)
    wanted = {named(labels_of(cause, "orders")), named(other)}
    paged = pager.until(wanted)
    # Its wait begins when the waits of the others are over: what was to be paged beside them has been, too.
    alertmanager.raise_together(labels_of("TheLast", "orders"))
    last = ("TheLast", "orders")
    assert paged | pager.until({last}) == wanted | {last}
    silenced = {one["labels"]["alertname"] for one in alertmanager.alerts() if one["status"]["inhibitedBy"]}
    assert silenced == STORIES[cause]


def test_each_silenced_alert_has_a_story() -> None:
    targets = {name for rule in inhibit_rules() for name in rule["target_matchers"][0].split('"')[1].split("|")}
    assert targets == set().union(*STORIES.values())
