"""The images that a sandbox of ours runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.demo.our_sandbox import our_images
from kube_sandbox.kubelet.environment import UnknownImageError

if TYPE_CHECKING:
    from pathlib import Path


def test_rocketmq_in_the_versions_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rocketmq-5.5.0" / "lib").mkdir(parents=True)
    monkeypatch.setenv("BROKERGROUP_CACHE", str(tmp_path))
    catalogue = our_images()
    assert catalogue.find("apache/rocketmq:5.5.0").environment == {"ROCKETMQ_HOME": str(tmp_path / "rocketmq-5.5.0")}
    assert catalogue.find("registry.example/brokergroup-operator:0.1.0").path
    with pytest.raises(UnknownImageError, match=r"apache/rocketmq:5\.5\.0"):
        catalogue.find("apache/rocketmq:4.9.0")
