"""A Proxy that dies before it listens is counted and reported, and restarted only a limited number of times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop import proxy
from tests.real.parts.process import RealProcessError

if TYPE_CHECKING:
    from pathlib import Path


class FailingProxies:
    """Stands for `start_proxy`: so many die before they listen."""

    def __init__(self, dying: int) -> None:
        self.left = dying
        self.killed = 0
        self.process = SimpleNamespace(kill=self._kill)

    def __call__(self, *_: Any, **__: Any) -> FailingProxies:
        return self

    def _kill(self) -> None:
        self.killed += 1

    def wait_until_listening(self, deadline_seconds: float) -> str:
        if self.left == 0:
            return "listening"
        self.left -= 1
        raise RealProcessError("proxy ended with 1")


def lab_in(folder: Path) -> Any:
    return SimpleNamespace(folder=folder, name_server=SimpleNamespace(address="127.0.0.1:1"))


async def test_each_that_died_is_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxies, outcome = FailingProxies(2), proxy.ProxyOutcome()
    said: list[str] = []
    monkeypatch.setattr(proxy, "start_proxy", proxies)
    started: Any = await proxy.proxy_of(lab_in(tmp_path), outcome, said.append)
    assert started == "listening"
    assert (outcome.died, proxies.killed, len(said)) == (2, 2, 2)
    assert "Proxy 2 died before it listened: proxy ended with 1" in said


async def test_one_that_never_listens_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = proxy.ProxyOutcome()
    monkeypatch.setattr(proxy, "start_proxy", FailingProxies(99))
    with pytest.raises(RealProcessError):
        await proxy.proxy_of(lab_in(tmp_path), outcome, lambda _: None)
    assert outcome.died == proxy.PROXY_ATTEMPTS
