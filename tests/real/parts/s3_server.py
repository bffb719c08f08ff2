"""A real S3 server on loopback, over a folder: its buckets are the folders in it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.real.parts.install import s3_server_program
from tests.real.parts.process import RealProcess, RealProcessError, accepts_connections, start
from tests.support.places import free_port

if TYPE_CHECKING:
    from pathlib import Path

ACCESS, SECRET, REGION = "reports", "not-a-secret", "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """A running server, and the variables by which a client of it is configured."""

    process: RealProcess
    environment: dict[str, str]

    def stop(self) -> None:
        self.process.signal(signal.SIGINT)
        self.process.stop()


def start_s3_server(folder: Path, bucket: str) -> S3Server:
    """The server, once it answers, with one bucket."""
    (folder / "data" / bucket).mkdir(parents=True)
    port = free_port()
    command = [str(s3_server_program()), "--access", ACCESS, "--secret", SECRET, "--region", REGION]
    command += ["--port", f"127.0.0.1:{port}", "posix", str(folder / "data")]
    process = start("versitygw", command, log=folder / "s3.log")
    try:
        process.wait_until(lambda: accepts_connections("127.0.0.1", port), what="listening")
    except RealProcessError:
        process.stop()
        raise
    return S3Server(process, {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET,
    })  # fmt: skip
