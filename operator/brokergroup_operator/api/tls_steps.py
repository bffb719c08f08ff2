"""In which order TLS between the parts of a cluster may change: the mode, the Secret, and the authorities that parts trust. Pure.

Parts whose modes differ by one step understand each other, others may not: a part without TLS cannot reach one that enforces it,
and is not accepted by one that verifies. So a change goes step by step, and the next step waits for every part (`next_mode`).

The operator knows of no Secret of which authority it is. So another Secret is given to parts only while none verifies. A bundle of
authorities it can read, and compare with what servers show: a part gets it once it verifies each of them (`Trust.why_held`).

What a pod was made with is read from its command and volumes, which no update of a pod can change; an annotation can be
lost, and then a step would be taken beside a part that cannot follow.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.bounds import JsonObject
from brokergroup_operator.api.pod_fields import LocalReference
from brokergroup_operator.api.tls_fields import TlsMode, TlsSpec, TrustBundleReference

# The steps, in their order; None: no TLS.
STEPS: Final[tuple[TlsMode | None, ...]] = (None, TlsMode.PERMISSIVE, TlsMode.ENFORCING)
_MODE: Final = re.compile(r"-Dtls\.server\.mode=(permissive|enforcing)\b")
_TRUST: Final = re.compile(r'-Dtls\.client\.trustCertPath="[^"]*/(trust-[0-9a-f]{12}\.pem)"')


class TlsAsMade(TlsSpec, frozen=True, kw_only=True):
    """The TLS with which pods are made now. `authorities`: what they trust, as PEM; `file`: its name.

    Without a text the file is lost and can't be made again yet: pods that run read it no more, and none is made anew for that.
    """

    file: str
    authorities: str


@dataclass(frozen=True)
class Made:
    """With what one part was made, or would be made anew. `trusts`: the file of its bundle; empty: ca.crt of its Secret."""

    mode: TlsMode | None = None
    secret: str = ""
    trusts: str = ""

    @property
    def verifies(self) -> bool:
        return self.mode is TlsMode.ENFORCING


@dataclass(frozen=True)
class Trust:
    """The bundle that the spec names, and the ones that pods read."""

    # PEM; empty where the spec names none, or it cannot be read.
    wanted: str = ""
    # Why no part may be made with it yet; empty: one may.
    why_held: str = ""
    # Whether that is only because a server does not answer. A change that has begun goes on then: it may be restarting for it.
    is_silence: bool = False
    # By the name of the file.
    kept: Mapping[str, str] = field(default_factory=dict)


NO_TRUST: Final = Trust()


def next_mode(wanted: TlsMode | None, present: Collection[TlsMode | None]) -> TlsMode | None:
    """Return the mode nearest to the wanted one that is at most one step from every mode that a part still has."""
    if not present:
        return wanted
    steps = [STEPS.index(one) for one in present]
    return STEPS[min(max(STEPS.index(wanted), max(steps) - 1), min(steps) + 1)]


def next_tls(wanted: TlsSpec | None, made: Sequence[Made], trust: Trust = NO_TRUST) -> TlsSpec | None:
    """Return the spec to make parts with, beside these. Where it goes on without a wanted one, it has the Secret of a part."""
    present = {one.mode for one in made}
    if wanted is None:
        mode = next_mode(None, present)
        secret = next((one.secret for one in made if one.secret), "")
        return _spec(secret, mode) if mode is not None and secret else None
    secret = wanted.certificate_secret_ref.name
    # These accept only what they were made with: beside them no part can have another Secret, nor trust one that is not known.
    if left := [one for one in made if one.verifies and (one.secret != secret or _loses_its_bundle(one, wanted))]:
        return _spec(left[0].secret, next_mode(TlsMode.PERMISSIVE, present), wanted.trust_bundle_ref)
    aim: TlsMode | None = wanted.mode
    others_serve = any(one.mode is not None and one.secret != secret for one in made)
    is_held_whole = bool(trust.why_held and made and not any(one.verifies for one in made))
    if aim is TlsMode.ENFORCING and (others_serve or is_held_whole):
        aim = TlsMode.PERMISSIVE
    mode = next_mode(aim, present)
    if mode is not TlsMode.ENFORCING or wanted.trust_bundle_ref is None:
        return _spec(secret, mode, wanted.trust_bundle_ref) if mode is not None else None
    return _with_authorities(wanted, made, trust)


def _loses_its_bundle(one: Made, wanted: TlsSpec) -> bool:
    return bool(one.trusts) and wanted.trust_bundle_ref is None


def _with_authorities(wanted: TlsSpec, made: Sequence[Made], trust: Trust) -> TlsSpec:
    """The wanted bundle once it may be given, else what a part has that verifies."""
    file, bundle = trust_file(trust.wanted), trust.wanted
    # Without a part the bundles that the last ones read: what is held would cut all of them off.
    given = [one.trusts for one in made if one.verifies] if made else sorted(trust.kept)
    if trust.why_held and not (trust.is_silence and file in given):
        former = [one for one in given if one != file] or given[:1] or [""]
        # One whose text is lost can't be given while a neighbour's can.
        file = next((one for one in former if not one or one in trust.kept), former[0])
        bundle = trust.kept.get(file, "")
    if not file:
        return _spec(wanted.certificate_secret_ref.name, TlsMode.ENFORCING, wanted.trust_bundle_ref)
    return TlsAsMade(
        certificate_secret_ref=wanted.certificate_secret_ref,
        mode=TlsMode.ENFORCING,
        trust_bundle_ref=wanted.trust_bundle_ref,
        file=file,
        authorities=bundle,
    )


def _spec(secret: str, mode: TlsMode | None, bundle: TrustBundleReference | None = None) -> TlsSpec:
    assert mode is not None
    return TlsSpec(certificate_secret_ref=LocalReference(name=secret), mode=mode, trust_bundle_ref=bundle)


def needs_proof(wanted: TlsSpec | None, made: Sequence[Made], bundle: str, kept: Collection[str] = ()) -> bool:
    """Whether parts are to be made with a bundle that not all of them have: then servers must be asked first.

    `kept`: the files of the bundles that parts had, which may all be lost. Parts that are the first of all need no proof.
    """
    if wanted is None or wanted.mode is not TlsMode.ENFORCING or not bundle:
        return False
    file = trust_file(bundle)
    if not made:
        return bool(kept) and file not in kept
    return any(not one.verifies or one.trusts != file for one in made)


def trust_file(bundle: str) -> str:
    """The name of the file with this bundle: another one for each content, so that a process started again reads the same."""
    return f"trust-{hashlib.sha256(bundle.encode()).hexdigest()[:12]}.pem" if bundle else ""


def strictest(modes: Iterable[TlsMode | None]) -> TlsMode | None:
    """Return the mode of these by which all of them can be reached."""
    return max(modes, key=STEPS.index, default=None)


def made_of(pod: JsonObject) -> Made:
    """With what this pod was made, or the pods of this template are."""
    command = "\n".join(_words(pod))
    mode, trusts, secret = _MODE.search(command), _TRUST.search(command), _secret_of(pod)
    # Without the operator's own volume they are arguments of the user, as docs/concepts/security.md has them.
    if mode is None or not secret:
        return Made()
    return Made(TlsMode(mode[1].capitalize()), secret, trusts[1] if trusts is not None else "")


def mode_of(pod: JsonObject) -> TlsMode | None:
    """Return the mode with which this pod was made, or the pods of this template are."""
    return made_of(pod).mode


def _words(pod: JsonObject) -> Iterable[str]:
    for container in (pod.get("spec") or {}).get("containers") or []:
        yield from map(str, container.get("command") or [])


def _secret_of(pod: JsonObject) -> str:
    volumes: list[dict[str, Any]] = (pod.get("spec") or {}).get("volumes") or []
    found = (one.get("secret") or {} for one in volumes if one.get("name") == names.VOLUME_TLS)
    return next((str(one.get("secretName") or "") for one in found), "")
