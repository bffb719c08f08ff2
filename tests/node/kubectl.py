"""kubectl and helm against the two nodes, as the cluster's administrator."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.node.places import REPOSITORY, kubeconfig
from tests.node.processes import NodeError, command
from tests.real.parts import install

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# Set when the run is interrupted: then all threads stop waiting.
given_up = threading.Event()
COMMANDS_SECONDS = 60.0
CHART = REPOSITORY / "charts" / "brokergroup-operator"


def kubectl_run(*arguments: str, stdin: str | None = None, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run it; the caller looks at the exit code."""
    return subprocess.run(
        [str(install.kubernetes_folder() / "kubectl"), "--kubeconfig", str(kubeconfig()), *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def kubectl(*arguments: str, stdin: str | None = None, seconds: float = 60.0) -> str:
    """Run it; it has to succeed. Hands back what it printed."""
    program = (str(install.kubernetes_folder() / "kubectl"), "--kubeconfig", str(kubeconfig()))
    return command(*program, *arguments, stdin=stdin, seconds=seconds)


def get(*arguments: str) -> Any:
    """`kubectl get … -o json`, read."""
    return json.loads(kubectl("get", *arguments, "-o", "json"))


def helm(*arguments: str, seconds: float = 180.0) -> str:
    return command(str(install.helm_program()), "--kubeconfig", str(kubeconfig()), *arguments, seconds=seconds)


def helm_template() -> str:
    """The chart of this checkout, as it comes without any setting."""
    return command(
        str(install.helm_program()), "template", "--kube-version", install.KUBERNETES_VERSION, "name", str(CHART)
    )


def until(what: str, holds: Callable[[], Any], seconds: float = 120.0, pause_seconds: float = 0.2) -> Any:
    """Poll until the answer is true, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        answer = holds()
        if answer:
            return answer
        if given_up.is_set():
            raise NodeError(f"{what}: interrupted")
        if time.monotonic() > deadline:
            raise NodeError(f"{what}: not within {seconds:g} s")
        time.sleep(pause_seconds)


def run_commands(
    text: str,
    what: str,
    *,
    variables: Mapping[str, str] | None = None,
    folder: Path = REPOSITORY,
    seconds: float = COMMANDS_SECONDS,
) -> None:
    """Run a document's commands in this folder. Raises NodeError with `what` and what they printed, where one of them fails."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env={**environment(), **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode != 0:
        raise NodeError(f"{what} ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}")


def environment() -> dict[str, str]:
    """Return the environment in which the commands of our documents work unchanged."""
    programs = [install.kubernetes_folder(), install.helm_program().parent]
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig())}
