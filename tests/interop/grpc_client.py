"""The gRPC client of RocketMQ 5 as a program: run by a Python that has `rocketmq-python-client`, not by the project's own.

    python grpc_client.py ENDPOINT TOPIC GROUP

With ROCKETMQ_CLIENT_TLS in its environment it connects with TLS, and trusts the file that gRPC's own variable names.

Its input is a command a line, its output one line of JSON a command: `produce FROM COUNT` sends so many numbered messages, each
tried until it is acknowledged; `send NUMBER` tries one once; `consume FROM COUNT SECONDS` receives and acknowledges until it has
all of these or the time is up, by a new consumer after 50 failures in a row; `receive` asks once and tells how that ended.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from typing import Any

rocketmq: Any = importlib.import_module("rocketmq")

BATCH = 32
INVISIBLE_SECONDS = 60
LONG_POLL_SECONDS = 3
PAUSE_SECONDS = 0.2
# 10 s: a Proxy that is made anew does not know a consumer that goes on for up to 10 minutes (docs/start/connect-clients.md).
TRIES_OF_A_CONSUMER = 50


def main(endpoint: str, topic: str, group: str) -> None:
    """Serve commands until the input ends."""
    client = Client(endpoint, topic, group)
    for line in sys.stdin:
        verb, *numbers = line.split()
        outcome = getattr(client, verb)(*(int(number) for number in numbers))
        print(json.dumps(outcome), flush=True)
    client.shutdown()


class Client:
    """A producer, and a consumer as soon as one is needed."""

    def __init__(self, endpoint: str, topic: str, group: str) -> None:
        self.configuration = rocketmq.ClientConfiguration(endpoint, rocketmq.Credentials(), "", 5)
        self.topic, self.group = topic, group
        self.uses_tls = "ROCKETMQ_CLIENT_TLS" in os.environ
        self.producer = rocketmq.Producer(self.configuration, (topic,), tls_enable=self.uses_tls)
        self.producer.startup()
        self.consumer: Any = None

    def produce(self, first: int, count: int) -> dict[str, Any]:
        """Send messages from `first` on; report each failed attempt."""
        failed: list[str] = []
        for number in range(first, first + count):
            while (error := self.send(number).get("error")) is not None:
                failed.append(error)
                time.sleep(PAUSE_SECONDS)
        return {"sent": count, "failed": failed}

    def send(self, number: int) -> dict[str, Any]:
        """Send one message, once."""
        message = rocketmq.Message()
        message.topic, message.keys = self.topic, f"g{number:06}"
        message.body = f"g{number:06}".encode().ljust(100 + number * 37 % 4000, b".")
        try:
            self.producer.send(message)
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is reported
            return {"error": described(error)}
        return {"sent": 1}

    def receive(self) -> dict[str, Any]:
        """Ask once; how long it took and what came of it."""
        began = time.monotonic()
        try:
            received = self._consumer().receive(BATCH, INVISIBLE_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever it raises is what is reported
            return {"error": described(error), "seconds": time.monotonic() - began}
        return {"received": len(received), "seconds": time.monotonic() - began}

    def consume(self, first: int, count: int, seconds: int) -> dict[str, Any]:
        """Receive and acknowledge until messages `first` and on are all there."""
        missing = {f"g{number:06}" for number in range(first, first + count)}
        keys: list[str] = []
        failed: list[str] = []
        in_a_row = renewed = 0
        deadline = time.monotonic() + seconds
        while not missing <= set(keys) and time.monotonic() < deadline:
            try:
                for message in self._consumer().receive(BATCH, INVISIBLE_SECONDS):
                    self._consumer().ack(message)
                    keys.append(message.body.split(b".", 1)[0].decode())
                in_a_row = 0
            except Exception as error:  # noqa: BLE001 - whatever it raises is what is reported
                failed.append(described(error))
                time.sleep(PAUSE_SECONDS)
                in_a_row += 1
            if in_a_row >= TRIES_OF_A_CONSUMER:
                self._end_consumer()
                in_a_row, renewed = 0, renewed + 1
        return {"keys": keys, "failed": failed, "new_consumers": renewed}

    def shutdown(self) -> None:
        self.producer.shutdown()
        self._end_consumer()

    def _end_consumer(self) -> None:
        if self.consumer is not None:
            with contextlib.suppress(Exception):  # its Proxy may be gone
                self.consumer.shutdown()
            self.consumer = None

    def _consumer(self) -> Any:
        if self.consumer is None:
            subscription = {self.topic: rocketmq.FilterExpression()}
            consumer = rocketmq.SimpleConsumer(
                self.configuration, self.group, subscription, LONG_POLL_SECONDS, tls_enable=self.uses_tls
            )
            consumer.startup()
            self.consumer = consumer
        return self.consumer


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


if __name__ == "__main__":
    main(*sys.argv[1:])
