"""An operator that ends by itself fails its run: otherwise the story would only time out."""

from __future__ import annotations

import pytest

from tests.sieve import operator_process
from tests.sieve.workloads import WORKLOADS
from tests.sieve.world import told


def test_a_plane_that_ends_fails_the_run_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: object) -> None:
        raise TypeError("no such argument")

    monkeypatch.setattr(operator_process._Watcher, "start", start)
    with pytest.raises(RuntimeError, match=r"the reconcile plane failed: TypeError.*no such argument"):
        told(next(iter(WORKLOADS.values())))
