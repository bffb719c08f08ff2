"""`kubectl brokergroup completion`: the small program that kubectl asks for completions of a plugin, and what answers it.

kubectl (1.26 and later) runs `kubectl_complete-brokergroup` from the PATH and takes its lines as candidates; the last line is
a directive (`:4`: no file names).
"""

import typer

from brokergroup_operator.kubectl.errors import PluginError

SCRIPT = """#!/bin/sh
# Put this on your PATH as kubectl_complete-brokergroup, and make it executable:
#   kubectl brokergroup completion > ~/.local/bin/kubectl_complete-brokergroup
#   chmod +x ~/.local/bin/kubectl_complete-brokergroup
exec kubectl-brokergroup __complete "$@"
"""
NO_FILES = ":4"
WITHOUT_GROUP = frozenset({"version", "completion", "generate", "migrate"})


def completion() -> None:
    """Print the program that lets kubectl complete verbs, options and group names."""
    typer.echo(SCRIPT, nl=False)


def complete(words: list[str]) -> list[str]:
    """Candidates for the last word. A cluster that cannot be asked has none."""
    from brokergroup_operator.kubectl.main import options_of, verb_names

    *before, last = words or [""]
    verbs = [word for word in before if not word.startswith("-")]
    if not verbs:
        return [name for name in verb_names() if name.startswith(last)]
    if last.startswith("-"):
        return [option for option in options_of(verbs[0]) if option.startswith(last)]
    if len(verbs) > 1 or verbs[0] in WITHOUT_GROUP:
        return []
    return [name for name in _group_names(before) if name.startswith(last)]


def _group_names(before: list[str]) -> list[str]:
    from brokergroup_operator.kubectl.reach.cluster import Cluster
    from brokergroup_operator.kubectl.reach.kinds import BROKER_GROUPS

    try:
        cluster = Cluster(None, _value_of(before, ("--context",)), _value_of(before, ("-n", "--namespace")))
        return [str(group["metadata"]["name"]) for group in cluster.list(BROKER_GROUPS)]
    except PluginError:
        return []


def _value_of(words: list[str], names: tuple[str, ...]) -> str | None:
    for index, word in enumerate(words):
        if word in names and index + 1 < len(words):
            return words[index + 1]
        for name in names:
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
    return None
