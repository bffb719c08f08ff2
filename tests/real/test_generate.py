"""A real kube-apiserver accepts the output of `kubectl brokergroup generate`, and refuses the manifests that it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from brokergroup_operator.kubectl import generate
from brokergroup_operator.kubectl.main import app
from tests.kubectl.bench import ACCEPTED, REFUSED, REFUSED_IDS

if TYPE_CHECKING:
    from tests.support.kube_apiserver import KubeApiserver

pytestmark = pytest.mark.real("kube-apiserver")
APPLY = ("create", "--dry-run=server", "--validate=strict", "-f", "-")


def generated(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["generate", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("arguments", ACCEPTED)
def test_a_real_apiserver_takes_it(with_kinds: KubeApiserver, namespace: str, arguments: tuple[str, ...]) -> None:
    said = with_kinds.must(*APPLY, stdin=generated("orders", "-n", namespace, *arguments))
    assert "brokergroup.brokergroup.dev/orders created (server dry run)" in said


@pytest.mark.parametrize(("group", "arguments", "field"), REFUSED, ids=REFUSED_IDS)
def test_a_real_apiserver_refuses_the_same_fields(
    with_kinds: KubeApiserver,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    arguments: tuple[str, ...],
    field: str,
) -> None:
    monkeypatch.setattr(generate, "complaints", lambda _: [])
    done = with_kinds.kubectl(*APPLY, stdin=generated(group, "-n", namespace, *arguments))
    assert done.returncode != 0
    assert f"{field}: " in done.stderr
