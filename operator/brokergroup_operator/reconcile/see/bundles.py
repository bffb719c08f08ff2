"""Bundles of authorities: reads the one that spec.tls names, and asks every server whether the bundle verifies its certificate.

A part that does not trust a server cuts itself off from it. So before a part is made with another bundle, the operator makes a TLS
handshake with each server to which parts connect, and verifies what it shows by that bundle: as the part would. Names are not
verified, as RocketMQ verifies none. A server that does not answer may show anything, so it holds the change up too.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_steps import Made, Trust, made_of, needs_proof, trust_file
from brokergroup_operator.kube.pods import is_over
from brokergroup_operator.reconcile.see import authorities, observed
from brokergroup_operator.reconcile.see.answers_in_turn import AnswersInTurn
from brokergroup_operator.reconcile.see.authorities import certificates_in, context_of
from rocketmq_remoting.address import Address, is_ip
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.tls import TlsFiles, client_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.tls_fields import TlsSpec

log = structlog.get_logger(__name__)
HANDSHAKE_SECONDS: Final = 3.0
LONGEST_REASON: Final = 1024
# All bundles that a group's pods read, and the one to come: the ConfigMap with them holds a MiB, and other files.
LONGEST_COPIES: Final = 900_000
RESOLVERS: Final = 4
# Of one name.
MOST_ADDRESSES: Final = 8
# Handshakes of one question: the controllers' connections take sockets of this process too.
AT_ONCE: Final = 16
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
    # Of its own: names that a tenant wrote may take long, and the API client's wait for the loop's executor.
    resolvers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(RESOLVERS, "name-of-server"))
    in_turn: AnswersInTurn = field(default_factory=AnswersInTurn)
    clock: Callable[[], float] = time.monotonic

    async def proof(self, bundle: str, addresses: Iterable[str], controllers: Iterable[str]) -> Proof:
        own = await asyncio.to_thread(self._own)
        lacking = certificates_in(bundle) - own if own is not None else frozenset()
        if lacking:
            many = "1 authority" if len(lacking) == 1 else f"{len(lacking)} authorities"
            told = f"the operator itself does not trust {many} of it (--tls-ca; chart: security.tls.trustBundle)"
            # No server is asked. A change that has begun goes on: when it began all were trusted, and the file may be changing.
            return Proof(silent=(told,))
        asked, planes = sorted(set(addresses)), sorted(set(controllers))
        # Once, and aside: with the bundles of many groups none is remembered, and each takes the loop for long.
        context = await asyncio.to_thread(context_of, bundle)
        looking = _Looking(context, trust_file(bundle), asyncio.Semaphore(AT_ONCE))
        found = await asyncio.gather(*(self._look(looking, one) for one in (*asked, *planes)))
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
            client_context(TlsFiles(ca=self.own_authorities))  # what it can't load, it does not trust
            return certificates_in(self.own_authorities.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return frozenset()

    async def _look(self, looking: _Looking, text: str) -> _Answer:
        """Each address of the name is asked: a part may connect to any of them."""
        try:
            address = Address.parse(text, "address")
            async with asyncio.timeout(self.handshake_seconds):
                hosts = await self._hosts(address)
        except (OSError, RemotingError, ValueError) as error:
            return _silent(text, error)
        found = await asyncio.gather(*(self._shake_hands(looking, text, host, address.port) for host in hosts))
        answers = [one for one in found if not one.is_silent]
        if not answers:
            return found[0] if found else _silent(text, OSError("no address"))
        refused = next((one for one in answers if one.text), None)
        if self.in_turn.show_both(looking.file, text, verified=refused is None, now_seconds=self.clock()):
            return _Answer(
                f"{text} shows in turn certificates that it verifies and others: give each server its own address"
            )
        return refused or answers[0]

    async def _hosts(self, address: Address) -> list[str]:
        if is_ip(address.host):
            return [address.host]  # waits for no name of another tenant
        loop = asyncio.get_running_loop()
        look_up = functools.partial(socket.getaddrinfo, address.host, address.port, type=socket.SOCK_STREAM)
        found = await loop.run_in_executor(self.resolvers, look_up)
        return list(dict.fromkeys(str(one[4][0]) for one in found))[:MOST_ADDRESSES]

    async def _shake_hands(self, looking: _Looking, text: str, host: str, port: int) -> _Answer:
        try:
            async with looking.places, asyncio.timeout(self.handshake_seconds):
                _, writer = await asyncio.open_connection(host, port, ssl=looking.context)
        except ssl.SSLCertVerificationError as error:
            return _Answer(f"it does not verify the certificate of {text} ({error.verify_message})")
        except (OSError, ValueError) as error:
            # ValueError: a verified certificate that Python cannot decode, with a name in no UTF-8, say.
            return _silent(text, error)
        writer.close()
        return _Answer("")


@dataclass(frozen=True)
class _Looking:
    """By what servers are verified, its file, and the places of this question's handshakes."""

    context: ssl.SSLContext
    file: str
    places: asyncio.Semaphore


def _silent(text: str, error: Exception) -> _Answer:
    # Why stands in the log alone: a status that told an open port from a closed one would scan the operator's network for a tenant.
    log.info("bundle.server_is_silent", server=text, error=f"{type(error).__name__}: {error}")
    return _Answer(f"{text} does not answer over TLS", is_silent=True)


@dataclass(frozen=True)
class _Answer:
    """What is amiss; empty: the server is verified. `is_silent`: it could not be asked."""

    text: str
    is_silent: bool = False


async def read(tls: TlsSpec | None, found: Mapping[str, JsonObject]) -> tuple[str, str]:
    """Return the bundle that the spec names, as parts are given it, and why it can't be used; both empty where none is named."""
    if tls is None or tls.trust_bundle_ref is None:
        return "", ""
    name, key = tls.trust_bundle_ref.name, tls.trust_bundle_ref.key
    if name not in found:
        return "", f"spec.tls.trustBundleRef names ConfigMap {name}, which does not exist: create it, or take it out"
    text = str((found[name].get("data") or {}).get(key, ""))
    read = await asyncio.to_thread(authorities.read, text)
    complaint = f"ConfigMap {name}, key {key}, of spec.tls.trustBundleRef {read.complaint}" if read.complaint else ""
    return read.pem, complaint


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
    problem = problem or _too_long_together(bundle, made, files)
    if problem:
        return Trust(wanted=bundle, why_held=problem, kept=files)
    if not needs_proof(wanted, made, bundle, files):
        return Trust(wanted=bundle, kept=files)
    there = [*addresses, *addresses_of(pods)]
    proof = await servers.proof(bundle, there, controllers)
    why = (*proof.refused, *proof.silent)
    told = f"{trust_file(bundle)}: {'; '.join(why)}"[:LONGEST_REASON] if why else ""
    return Trust(wanted=bundle, why_held=told, is_silence=not proof.refused, kept=files)


def _too_long_together(bundle: str, made: Sequence[Made], files: Mapping[str, str]) -> str:
    """Why a further bundle is not begun beside those that pods read; empty where it has a place in the ConfigMap."""
    others = {one.trusts for one in made} & files.keys() - {trust_file(bundle)}
    many = len(bundle) + sum(len(files[name]) for name in others)
    if not others or many <= LONGEST_COPIES:
        return ""
    together = f"with the bundles that pods still read it has {many} characters, expected at most {LONGEST_COPIES}"
    return f"{trust_file(bundle)} waits: {together}"


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


def still_read(config_map: JsonObject | None, pods: Iterable[JsonObject], trust: Trust) -> dict[str, str]:
    """Return the bundles, by file, that pods read, of the stored ones and of those that were found again: a container may start
    again, and read its file, before its pod's turn.

    Without a pod and while the wanted one is held, all of them: the next pods are made with one of these.
    """
    stored = {name: str(text) for name, text in ((config_map or {}).get("data") or {}).items() if _FILE.fullmatch(name)}
    stored |= trust.kept
    there = [made_of(pod).trusts for pod in pods]
    if not there and trust.why_held:
        return stored
    return {name: stored[name] for name in sorted(stored) if name in there}
