"""Unused code: vulture's findings in the product, without definitions that are used from outside Python.

    python -m tests.repository.dead_code

Tests count as users: a client's `disconnect` exists for them. Exit 1 with one line for each unused name, and for each
exemption below that is not needed any more.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vulture import Vulture  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = (
    "controller_core", "metric_names", "rocketmq_remoting", "rocketmq_replica", "kube_sandbox", "sla_reports", "operator",
)  # fmt: skip
USERS: Final = ("tests", "benchmarks", "docs", ".ci")
MIN_CONFIDENCE: Final = 60
# Fields and members here are names on the wire or in a kind: what is read from there is kept and written again.
ON_THE_WIRE: Final = ("rocketmq_remoting/", "operator/brokergroup_operator/api/")
# (file, name): its user. A definition without a use and without an entry here is dead.
CALLED_BY_OTHERS: Final[dict[tuple[str, str], str]] = {
    ("controller_core/decision.py", "new_sync_state_set_epoch"): "wire/codec.py: an answer fills its header by name",
    ("kube_sandbox/api_server/subresources.py", "__call__"): "the shape of a function",
    ("kube_sandbox/client.py", "_retry_connection"): "aiohttp",
    ("kube_sandbox/client.py", "trace"): "the interpreter, when a context manager ends",
    ("kube_sandbox/kubelet/process.py", "_burial"): "nobody: it keeps the task alive",
    ("operator/brokergroup_operator/api/definitions/generate.py", "ignore_aliases"): "PyYAML",
    ("operator/brokergroup_operator/cli/main.py", "every_command"): "typer",
    ("operator/brokergroup_operator/kubectl/operate.py", "__annotations__"): "typer",
    ("operator/brokergroup_operator/option_groups.py", "__annotations__"): "typer",
    ("operator/brokergroup_operator/option_groups.py", "__signature__"): "typer",
    ("operator/brokergroup_operator/cli/written_report_command.py", "whatif"): "typer",
    ("operator/brokergroup_operator/controller/change/fencing.py", "datagram_received"): "asyncio",
    ("operator/brokergroup_operator/kube/client.py", "_retry_connection"): "aiohttp",
    ("operator/brokergroup_operator/kube/client.py", "trace"): "the interpreter, when a context manager ends",
    ("operator/brokergroup_operator/kubectl/main.py", "every_verb"): "typer",
    (
        "operator/brokergroup_operator/observe/group_view.py",
        "master_version",
    ): "equality: of a newer version it is another one",
    ("operator/brokergroup_operator/kubectl/report.py", "mtime"): "tarfile",
    ("operator/brokergroup_operator/reconcile/run/watch.py", "standalone"): "kopf",
    ("operator/brokergroup_operator/reconcile/run/watch.py", "disabled"): "kopf",
    ("operator/brokergroup_operator/reconcile/run/watch.py", "progress_storage"): "kopf",
    ("operator/brokergroup_operator/reconcile/run/watch.py", "diffbase_storage"): "kopf",
    ("operator/brokergroup_operator/reconcile/run/watch.py", "error_backoffs"): "kopf",
    ("operator/brokergroup_operator/reconcile/run/watch.py", "request_timeout"): "kopf",
    ("operator/brokergroup_operator/reconcile/run/watch.py", "server_timeout"): "kopf",
    ("operator/brokergroup_operator/reconcile/run/watch.py", "ultimate_exiting_timeout"): "kopf",
    ("rocketmq_remoting/tls.py", "num_tickets"): "ssl",
    ("sla_reports/readers/prometheus.py", "StructType"): "mypy: it names a type in a text",
    ("sla_reports/readers/prometheus.py", "streamReader"): "pyspark",
    ("sla_reports/readers/http_client.py", "max_redirections"): "urllib",
    ("sla_reports/readers/http_client.py", "max_repeats"): "urllib",
    ("sla_reports/readers/http_client.py", "msg"): "urllib",
    ("sla_reports/readers/http_client.py", "redirect_request"): "urllib",
    ("sla_reports/readers/samples.py", "addInPlace"): "pyspark",
    ("sla_reports/readers/samples.py", "zero"): "pyspark",
    ("sla_reports/readers/prometheus.py", "ReadLimit"): "mypy: it names a type in a text",
}


def findings() -> Iterable[tuple[str, str, int, str]]:
    """File, name, line and kind of each definition that is not used."""
    vulture = Vulture()
    vulture.scavenge([str(ROOT / folder) for folder in (*PRODUCT, *USERS)], exclude=["*/node_modules/*"])
    for item in vulture.get_unused_code(min_confidence=MIN_CONFIDENCE):
        file = str(Path(item.filename).relative_to(ROOT))
        on_the_wire = item.typ == "variable" and file.startswith(ON_THE_WIRE)
        if file.startswith(tuple(f"{folder}/" for folder in PRODUCT)) and not on_the_wire:
            yield file, item.name, item.first_lineno, item.typ


def main() -> int:
    found = {(file, name): (line, kind) for file, name, line, kind in findings()}
    dead = found.keys() - CALLED_BY_OTHERS.keys()
    for file, name in sorted(dead):
        line, kind = found[file, name]
        print(f"{file}:{line}: {kind} {name} is not used", file=sys.stderr)
    for file, name in sorted(CALLED_BY_OTHERS.keys() - found.keys()):
        print(f"{file}: {name} is exempted ({CALLED_BY_OTHERS[file, name]}) and need not be", file=sys.stderr)
    return 1 if dead or CALLED_BY_OTHERS.keys() - found.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
