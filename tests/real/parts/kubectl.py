"""The real kubectl, bound to one kubeconfig: of the real API server or of the sandbox."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.real.parts import install
from tests.real.parts.process import RealProcessError

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_SECONDS = 60


@dataclass(frozen=True)
class Kubectl:
    """Runs kubectl."""

    kubeconfig: Path

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run it; the caller looks at the exit code and the output."""
        program = str(install.kubernetes_folder() / "kubectl")
        return subprocess.run(
            [program, "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def must(self, *arguments: str, stdin: str | None = None) -> str:
        """Run it; it has to succeed. Hands back what it printed."""
        done = self.run(*arguments, stdin=stdin)
        if done.returncode != 0:
            raise RealProcessError(f"kubectl {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """`kubectl get ... -o json`, read."""
        return json.loads(self.must("get", *arguments, "-o", "json"))

    def wait_for_kinds(self) -> None:
        """Until every kind that was just defined can be listed.

        A kube-apiserver that has called a kind Established still answers 429 "storage is (re)initializing" for a moment; kubectl
        asks again as its Retry-After says.
        """
        self.must("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        kinds = [one["metadata"]["name"] for one in self.get("crd")["items"]]
        self.must("get", ",".join(kinds), "--all-namespaces")
