"""A group and a cluster that trust the bundle of spec.tls.trustBundleRef, and servers that show a certificate or stay silent."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fields import LocalReference
from brokergroup_operator.api.tls_fields import TlsMode, TlsSpec, TrustBundleReference
from brokergroup_operator.api.tls_steps import made_of, trust_file
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, DEPLOYMENTS, PODS, STATEFUL_SETS
from brokergroup_operator.reconcile.see.authorities import certificates_in
from brokergroup_operator.reconcile.see.bundles import Proof
from rocketmq_remoting.tls import ClientCertificates, server_context
from tests.reconcile import world as w
from tests.reconcile.cluster_place import Place
from tests.reconcile.test_tls import JAVA, SERVED, tls
from tests.security.certificates import make_authority

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterable

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer
    from rocketmq_remoting.tls import TlsFiles
    from tests.reconcile.world import World

BUNDLE = {"name": "authorities", "key": "ca-bundle.crt"}


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three bundles, by name."""
    folder = tmp_path_factory.mktemp("authorities")
    old, new = (make_authority(folder, name).certificate.read_text(encoding="utf-8") for name in ("old", "new"))
    return {"old": old, "both": old + new, "new": new}


@dataclass
class Shown:
    """What all servers show: a certificate of this authority. Or they are silent."""

    authority: str
    is_silent: bool = False
    asked: list[str] = field(default_factory=list)

    async def proof(self, bundle: str, addresses: Iterable[str], controllers: Iterable[str]) -> Proof:
        self.asked += [*addresses, *controllers]
        if self.is_silent:
            return Proof(silent=("10.0.0.1:10911 does not answer",))
        if certificates_in(self.authority) <= certificates_in(bundle):
            return Proof()
        return Proof(refused=("it does not verify the certificate of 10.0.0.1:10911",))


async def bundle_is(world: World | Place, text: str) -> None:
    made = {"metadata": {"name": BUNDLE["name"], "namespace": world.key.namespace}, "data": {BUNDLE["key"]: text}}
    try:
        await world.patch(CONFIG_MAPS, BUNDLE["name"], {"data": made["data"]})
    except NotFoundError:
        await world.api.create(CONFIG_MAPS, made)


async def trusted(world: World) -> set[str]:
    return {made_of(pod).trusts for pod in await world.items(PODS)}


async def stored(world: World) -> dict[str, str]:
    config_map = await world.get(CONFIG_MAPS, names.config_map_name(world.key.name))
    return {name: text for name, text in config_map["data"].items() if name.startswith("trust-")}


@pytest.fixture
async def group(sandbox: SandboxApiServer, sandbox_world: World, pem: dict[str, str]) -> World:
    """It trusts the old authority, and its servers show it."""
    world = sandbox_world
    world.settings, world.servers = replace(w.SETTINGS, controller_tls=True), Shown(pem["old"])
    await bundle_is(world, pem["old"])
    await world.bring_up(sandbox, **JAVA, tls=tls("Enforcing") | {"trustBundleRef": BUNDLE})
    assert await trusted(world) == {trust_file(pem["old"])}
    assert await stored(world) == {trust_file(pem["old"]): pem["old"]}
    return world


@pytest.fixture
def place(namespace: tuple[KubernetesApi, str], pem: dict[str, str]) -> Place:
    return Place(*namespace, SERVED, servers=Shown(pem["old"]))


async def given(place: Place) -> set[str]:
    """What the parts' pods are made to trust."""
    group = await place.get(BROKER_GROUPS, "shop-0")
    found = {(group["spec"]["tls"].get("trustBundleRef") or {}).get("key", "")}
    for resource, name in ((STATEFUL_SETS, "shop-nameserver"), (DEPLOYMENTS, "shop-proxy")):
        found.add(made_of((await place.get(resource, name))["spec"]["template"]).trusts)
    return found


async def files(place: Place) -> set[str]:
    return set((await place.get(CONFIG_MAPS, "shop-trust"))["data"])


def spec_of() -> TlsSpec:
    return TlsSpec(
        certificate_secret_ref=LocalReference(name="shop-tls"),
        mode=TlsMode.ENFORCING,
        trust_bundle_ref=TrustBundleReference(name=BUNDLE["name"]),
    )


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext | None, said: bytes = b"") -> AsyncIterator[str]:
    """A server that sends this on each connection, and answers nothing; None: it speaks no TLS."""

    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(said)
            await reader.read()
        writer.close()

    made = await asyncio.start_server(heard, "127.0.0.1", 0, ssl=context)
    async with made:
        yield f"127.0.0.1:{made.sockets[0].getsockname()[1]}"


def server(files: TlsFiles | None) -> contextlib.AbstractAsyncContextManager[str]:
    """One that shows this certificate; None: it speaks no TLS."""
    return listening(None if files is None else server_context(files, ClientCertificates.NONE), b"no TLS\n")


def slow_loris() -> contextlib.AbstractAsyncContextManager[str]:
    """A server that accepts a connection, and never shakes hands."""
    return listening(None)
