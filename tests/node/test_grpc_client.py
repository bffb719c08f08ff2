"""The tests' gRPC client, with a package `rocketmq` of one Proxy that was made anew."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


class Consumer:
    """The first one is unknown to the new Proxy for good; the next one is served."""

    started = 0

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        Consumer.started += 1
        self.is_known = Consumer.started > 1

    def startup(self) -> None: ...

    def shutdown(self) -> None:
        raise RuntimeError("its Proxy is gone")

    def receive(self, _count: int, _invisible_seconds: int) -> list[Any]:
        if not self.is_known:
            raise RuntimeError('50001, "settings" is null')
        return [SimpleNamespace(body=b"g000007....")]

    def ack(self, message: Any) -> None: ...


def test_a_consumer_that_a_new_proxy_does_not_know_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = SimpleNamespace(startup=lambda: None)
    package = SimpleNamespace(
        ClientConfiguration=lambda *_: None,
        Credentials=lambda: None,
        FilterExpression=lambda: None,
        Producer=lambda *_, **__: producer,
        SimpleConsumer=Consumer,
    )
    monkeypatch.setitem(sys.modules, "rocketmq", package)
    grpc_client = importlib.import_module("tests.interop.grpc_client")
    monkeypatch.setattr(grpc_client, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(grpc_client, "rocketmq", package)
    told = grpc_client.Client("nowhere:8081", "orders", "readers").consume(7, 1, 60)
    assert told["keys"] == ["g000007"]
    assert (len(told["failed"]), told["new_consumers"]) == (grpc_client.TRIES_OF_A_CONSUMER, 1)
