"""The unmodified Java programs of RocketMQ: how each is started, and mqadmin as a command."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.real.parts import install
from tests.real.parts.process import RealProcess, RealProcessError, accepts_connections, start
from tests.support.places import free_port

REPOSITORY = Path(__file__).resolve().parents[3]
DEMO_JAVA = REPOSITORY / "operator" / "brokergroup_operator" / "demo" / "java"
QUIET = f"-Drmq.logback.configurationFile={DEMO_JAVA / 'logback-quiet.xml'}"
MAIN_CLASSES = {
    "broker": "org.apache.rocketmq.broker.BrokerStartup",
    "controller": "org.apache.rocketmq.controller.ControllerStartup",
    "mqadmin": "org.apache.rocketmq.tools.command.MQAdminStartup",
    "namesrv": "org.apache.rocketmq.namesrv.NamesrvStartup",
    "proxy": "org.apache.rocketmq.proxy.ProxyStartup",
}
NO_NAME_SERVER = "127.0.0.1:1"
# A Java broker 5.5.0 wastes CPU seconds, measured without the optimising compiler: it compares its whole timer
# wheel byte by byte once a second (0.3 each time), and its TransactionMetricsFlushService spins until the first flush is due (9).
SPARING_BROKER: dict[str, str | int] = {"timerFlushIntervalMs": 60_000, "transactionMetricFlushInterval": 500}
# Unless TLS is off, RocketMQ makes a key and a certificate when a program starts: 3 of the 7 CPU seconds of a broker's start.
NO_TLS = "-Dtls.server.mode=disabled"
# For programs of which a test sees only what they answer: the optimising compiler works for a later that no test waits for.
FAST_START = ("-XX:TieredStopAtLevel=1", NO_TLS)
MQADMIN_DEADLINE_SECONDS = 180.0


def java_command(
    program: str, folder: Path, *, heap: str = "256m", flags: tuple[str, ...] = (), home: Path | None = None
) -> list[str]:
    """The command up to the program's own arguments; everything it writes stays in `folder`."""
    return [
        *(
            "java",
            f"-Xms{heap}",
            f"-Xmx{heap}",
            "-XX:+UseSerialGC",
            "-XX:MaxDirectMemorySize=512m",
            *FAST_START,
        ),
        *(f"-Duser.home={folder}", f"-Drocketmq.home.dir={folder}"),
        *("-cp", str((home or install.rocketmq_home()) / "lib" / "*")),
        *flags,
        MAIN_CLASSES[program],
    ]


def write_properties(path: Path, properties: dict[str, str | int]) -> Path:
    """A Java properties file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
    return path


@dataclass(frozen=True)
class JavaProgram:
    """A running NameServer, controller or broker."""

    process: RealProcess
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def wait_until_listening(self, deadline_seconds: float = 90.0) -> JavaProgram:
        self.process.wait_until(
            lambda: accepts_connections(self.host, self.port),
            what=f"listening on {self.address}",
            deadline_seconds=deadline_seconds,
        )
        return self


def start_name_server(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    version: str = install.ROCKETMQ_VERSION,
    flags: tuple[str, ...] = (),
) -> JavaProgram:
    """A real NameServer on a free port."""
    port = free_port(host)
    config = write_properties(folder / "namesrv.conf", {"listenPort": port, "bindAddress": host})
    command = [*java_command("namesrv", folder, flags=flags, home=install.rocketmq_home(version)), "-c", str(config)]
    return JavaProgram(start("namesrv", command, log=folder / "namesrv.log"), host, port)


def start_controller(
    folder: Path, *, host: str = "127.0.0.1", version: str = install.ROCKETMQ_VERSION, **extra: str | int
) -> JavaProgram:
    """A real Java controller, alone: the peer that our own is compared with. `extra` are options of its own."""
    port = free_port(host)
    properties: dict[str, str | int] = {
        "controllerDLegerGroup": "tests",
        "controllerDLegerPeers": f"n0-{host}:{port}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(folder / "store"),
        "mappedFileSize": 16777216,
        **extra,
    }
    config = write_properties(folder / "controller.conf", properties)
    command = [*java_command("controller", folder, home=install.controller_home(version)), "-c", str(config)]
    return JavaProgram(start("controller", command, log=folder / "controller.log"), host, port)


def broker_properties(
    folder: Path, *, controllers: str, name_server: str, host: str = "127.0.0.1"
) -> dict[str, str | int]:
    """Return the properties of a broker in controller mode with its store in `folder`, without ports."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": -1,
        "brokerRole": "SLAVE",
        "enableControllerMode": "true",
        "controllerAddr": controllers,
        "namesrvAddr": name_server,
        "brokerIP1": host,
        "brokerIP2": host,
        "storePathRootDir": str(folder / "store"),
        "storePathCommitLog": str(folder / "store" / "commitlog"),
        "storePathEpochFile": str(folder / "store" / "epochFileCheckpoint"),
        "storePathBrokerIdentity": str(folder / "store" / "brokerIdentity"),
        "mappedFileSizeCommitLog": 67108864,
        "haSendHeartbeatInterval": 1,
    }


def start_proxy(folder: Path, *, name_server_address: str, host: str = "127.0.0.1") -> JavaProgram:
    """A real Proxy in cluster mode, its gRPC port with a certificate it makes itself; `port` is the gRPC one."""
    port = free_port(host)
    options = {
        "proxyMode": "CLUSTER",
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": name_server_address,
        "grpcServerPort": port,
        "remotingListenPort": free_port(host),
        "topicRouteServiceCacheRefreshSeconds": 1,
        "localServeAddr": host,
    }
    config = folder / "proxy.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps(options), encoding="utf-8")
    command = java_command("proxy", folder, heap="384m", home=install.proxy_home())
    return JavaProgram(start("proxy", [*command, "-pc", str(config)], log=folder / "proxy.log"), host, port)


def start_broker(
    folder: Path,
    *,
    controller_address: str,
    name_server_address: str,
    host: str = "127.0.0.1",
    version: str = install.ROCKETMQ_VERSION,
    flags: tuple[str, ...] = (),
    **extra: str | int,
) -> JavaProgram:
    """A real broker in controller mode with its store in `folder`; started again there, it keeps its identity."""
    port = free_port(host, neighbours=2)
    properties = broker_properties(folder, controllers=controller_address, name_server=name_server_address, host=host)
    properties |= {"listenPort": port, "haListenPort": free_port(host), **SPARING_BROKER, **extra}
    config = write_properties(folder / "broker.conf", properties)
    home = install.rocketmq_home(version)
    command = [*java_command("broker", folder, heap="512m", flags=flags, home=home), "-c", str(config)]
    return JavaProgram(start(folder.name, command, log=folder / "broker.log"), host, port)


def mqadmin(folder: Path, *arguments: str, name_server_address: str = NO_NAME_SERVER) -> str:
    """Run the real mqadmin, for a question only, and hand back what it printed; one that says it failed is an error.

    Without a NameServer's address mqadmin asks a host on the internet for one: so it always gets one, if need be a dead one.
    Its deadline of 3 s begins before it has loaded its classes, so on a busy machine it gives up on itself: asked again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flags = (QUIET, f"-Drocketmq.namesrv.addr={name_server_address}")
    command = [*java_command("mqadmin", folder, flags=flags), *arguments]
    told = ""
    deadline = time.monotonic() + MQADMIN_DEADLINE_SECONDS
    while (left_seconds := deadline - time.monotonic()) > 0:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=left_seconds, check=False
        )
        told = f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
        if done.returncode == 0 and "Exception" not in told:
            return done.stdout
        if "RemotingTimeoutException" not in told:
            break
    raise RealProcessError(f"mqadmin {' '.join(arguments)}: {told}")
