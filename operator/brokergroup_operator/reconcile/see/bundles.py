"""Bundles of authorities: reads the one that spec.tls names, and asks every server whether the bundle verifies its certificate.

A part that does not trust a server cuts itself off from it. So before a part is made with another bundle, the operator makes a TLS
handshake with each server to which parts connect, and verifies what it shows by that bundle: as the part would. Names are not
verified, as RocketMQ verifies none. A server that does not answer may show anything, so it holds the change up too.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_steps import Made, Trust, made_of, needs_proof, trust_file
from brokergroup_operator.kube.pods import is_over
from brokergroup_operator.reconcile.see import observed
from rocketmq_remoting.address import Address
from rocketmq_remoting.errors import RemotingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.tls_fields import TlsSpec

HANDSHAKE_SECONDS: Final = 3.0
# Three hundred certificates: a ConfigMap holds a MiB, and may have to hold two bundles.
LONGEST_BUNDLE: Final = 400_000
LONGEST_REASON: Final = 1024
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----\s+(.+?)\s+-----END CERTIFICATE-----", re.DOTALL)
_FILE: Final = re.compile(r"trust-[0-9a-f]{12}\.pem")


class Servers(Protocol):
    """Asks servers for their certificates."""

    async def proof(self, bundle: str, addresses: Iterable[str], controllers: Iterable[str]) -> Proof:
        """Say what keeps a part that trusts only this bundle (PEM) from these servers (host:port).

        Of controllers those that do not answer count for nothing, while another one does: brokers go on with the next.
        """
        ...


@dataclass(frozen=True)
class Proof:
    """Both empty: the bundle verifies each server. `silent`: the servers that could not be asked, and why."""

    refused: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class HandshakingServers:
    """By a handshake each. `own_authorities`: the file of those that this operator trusts; None: it trusts any."""

    own_authorities: Path | None = None
    handshake_seconds: float = HANDSHAKE_SECONDS

    async def proof(self, bundle: str, addresses: Iterable[str], controllers: Iterable[str]) -> Proof:
        own = await asyncio.to_thread(self._own)
        lacking = certificates_in(bundle) - own if own is not None else frozenset()
        if lacking:
            many = "1 authority" if len(lacking) == 1 else f"{len(lacking)} authorities"
            told = f"the operator itself does not trust {many} of it (--tls-ca; chart: security.tls.trustBundle)"
            return Proof(refused=(told,))
        asked, planes = sorted(set(addresses)), sorted(set(controllers))
        found = await asyncio.gather(*(self._look(bundle, one) for one in (*asked, *planes)))
        of_planes = [why for why in found[len(asked) :] if not why.is_silent]
        answers = (*found[: len(asked)], *of_planes)
        silent = [why.text for why in answers if why.is_silent]
        if planes and not of_planes:
            silent.append(f"no controller answers over TLS at {', '.join(planes)}")
        return Proof(tuple(why.text for why in answers if why.text and not why.is_silent), tuple(silent))

    def _own(self) -> frozenset[str] | None:
        """Read anew each time: the file is mounted, and changes."""
        if self.own_authorities is None:
            return None
        try:
            return certificates_in(self.own_authorities.read_text(encoding="utf-8"))
        except OSError:
            return frozenset()

    async def _look(self, bundle: str, text: str) -> _Answer:
        try:
            address = Address.parse(text, "address")
            async with asyncio.timeout(self.handshake_seconds):
                _, writer = await asyncio.open_connection(address.host, address.port, ssl=context_of(bundle))
        except ssl.SSLCertVerificationError as error:
            return _Answer(f"it does not verify the certificate of {text} ({error.verify_message})")
        except (OSError, RemotingError, ValueError) as error:
            return _Answer(f"{text} does not answer over TLS ({type(error).__name__}: {error})", is_silent=True)
        writer.close()
        return _Answer("")


@dataclass(frozen=True)
class _Answer:
    """What is amiss; empty: the server is verified. `is_silent`: it could not be asked."""

    text: str
    is_silent: bool = False


def context_of(bundle: str) -> ssl.SSLContext:
    """Raise ValueError where the text is no bundle (`complaint`)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.load_verify_locations(cadata=bundle)
    return context


def certificates_in(bundle: str) -> frozenset[str]:
    """The certificates of it, each without its line breaks."""
    return frozenset("".join(one.split()) for one in _CERTIFICATE.findall(bundle))


def complaint(tls: TlsSpec | None, found: Mapping[str, JsonObject]) -> str:
    """Why the bundle that the spec names can't be used; empty if it can, or none is named."""
    if tls is None or tls.trust_bundle_ref is None:
        return ""
    name, key = tls.trust_bundle_ref.name, tls.trust_bundle_ref.key
    if name not in found:
        return f"spec.tls.trustBundleRef names ConfigMap {name}, which does not exist: create it, or take it out"
    text = bundle_in(tls, found)
    what = f"ConfigMap {name}, key {key}, of spec.tls.trustBundleRef"
    if not certificates_in(text):
        return f"{what} has no certificate, expected one or more as PEM"
    if len(text) > LONGEST_BUNDLE:
        return f"{what} has {len(text)} characters, expected at most {LONGEST_BUNDLE}"
    try:
        context_of(text)
    except (ssl.SSLError, ValueError) as error:
        return f"{what} can't be read ({error}), expected certificates as PEM"
    return ""


def bundle_in(tls: TlsSpec | None, found: Mapping[str, JsonObject]) -> str:
    """The text that the spec names; empty where there is none."""
    if tls is None or tls.trust_bundle_ref is None:
        return ""
    data = (found.get(tls.trust_bundle_ref.name) or {}).get("data") or {}
    return str(data.get(tls.trust_bundle_ref.key, ""))


async def trust_of(  # noqa: PLR0913 (each is a thing of its own)
    wanted: TlsSpec | None,
    bundle: str,
    *,
    problem: str,
    made: Sequence[Made],
    pods: Iterable[JsonObject],
    kept: JsonObject | None,
    servers: Servers,
    addresses: Iterable[str],
    controllers: Iterable[str],
) -> Trust:
    """`kept`: the operator's own ConfigMap with the bundles of pods; `addresses`: of servers beside the pods."""
    if wanted is None or wanted.trust_bundle_ref is None:
        return Trust()
    files = {name: str(text) for name, text in ((kept or {}).get("data") or {}).items() if _FILE.fullmatch(name)}
    if problem:
        return Trust(why_held=problem, kept=files)
    if not needs_proof(wanted, made, bundle) or not made:
        return Trust(wanted=bundle, kept=files)
    there = [*addresses, *addresses_of(pods)]
    proof = await servers.proof(bundle, there, controllers)
    why = (*proof.refused, *proof.silent)
    told = f"{trust_file(bundle)}: {'; '.join(why)}"[:LONGEST_REASON] if why else ""
    return Trust(wanted=bundle, why_held=told, is_silence=not proof.refused, kept=files)


def addresses_of(pods: Iterable[JsonObject]) -> list[str]:
    """Where ready pods serve other parts (host:port). What is not ready will serve what the others mount too."""
    found = []
    for pod in pods:
        if not observed.pod_is_ready(pod) or is_over(pod):
            continue
        for container in pod["spec"]["containers"]:
            ports = [one["containerPort"] for one in container.get("ports") or [] if one.get("name") in _SERVING]
            found += [str(Address(observed.pod_ip(pod), port)) for port in ports]
    return found


# Parts connect to these; to proxies only clients do.
_SERVING: Final = (names.PORT_BROKER, "nameserver")


def still_read(config_map: JsonObject | None, pods: Iterable[JsonObject]) -> dict[str, str]:
    """Return the stored bundles, by file, that pods read: a container may start again, and read its file, before its pod's turn."""
    read = {made_of(pod).trusts for pod in pods}
    stored = (config_map or {}).get("data") or {}
    return {name: str(stored[name]) for name in sorted(read) if name in stored}
