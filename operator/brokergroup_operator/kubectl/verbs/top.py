"""`kubectl brokergroup top`: all groups, worst first, live, from the API alone."""

import shutil
import sys
from typing import Annotated, Any

import typer

from brokergroup_operator.kubectl import options


def top(
    *,
    all_namespaces: options.AllNamespaces = False,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end")] = False,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """All groups, worst first, drawn again after every change until Ctrl-C."""
    from brokergroup_operator.kubectl.reach.cluster import Cluster
    from brokergroup_operator.kubectl.show.top_page import top_page
    from brokergroup_operator.kubectl.show.watching import show_all

    def render(groups: list[dict[str, Any]]) -> str:
        if not sys.stdout.isatty():
            return top_page(groups, everywhere=all_namespaces)
        size = shutil.get_terminal_size()
        return top_page(groups, everywhere=all_namespaces, rows=size.lines, width=size.columns)

    show_all(Cluster(kubeconfig, context, namespace), render, everywhere=all_namespaces, watch=not once)
