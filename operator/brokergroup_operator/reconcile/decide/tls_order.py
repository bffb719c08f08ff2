"""With which TLS pods are made now, beside those that are there (api/tls_steps.py), and how that is told. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from msgspec.structs import replace

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.tls_fields import TlsMode
from brokergroup_operator.api.tls_steps import Made, TlsAsMade, made_of, next_tls, trust_file
from brokergroup_operator.kube.pods import is_over
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.plan import Step, Verb
from brokergroup_operator.reconcile.render.tls import trusted_file

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.api.tls_fields import TlsSpec
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


def with_next_tls(seen: Observed, settings: ReconcileSettings) -> BrokerGroup:
    """Return the group as its pods are made.

    While the operator serves no TLS none changes to it, and a group on its way goes back: a broker with TLS would not be heard.
    """
    group, made = seen.group, [made_of(pod) for pod in seen.pods.values() if not is_over(pod)]
    has_it_whole = bool(made) and all(one.mode for one in made)
    now = next_tls(group.spec.tls if settings.controller_tls or has_it_whole else None, made, seen.trust)
    return group if now == group.spec.tls else replace(group, spec=replace(group.spec, tls=now))


def on_its_way(seen: Observed) -> str:
    """What pods are made with now, and with what each pod was made; empty where all is as the spec says."""
    wanted, now = seen.wanted_tls, made_with(seen.group.spec.tls)
    aim = aim_of(wanted, seen.trust.wanted)
    made = {name: made_of(pod) for name, pod in sorted(seen.pods.items()) if not is_over(pod)}
    if not made or (all(one == aim for one in made.values()) and not why_held(seen)):
        return ""
    pods = ", ".join(f"{name} ({told(one, aim.secret)})" for name, one in made.items())
    text = f"spec.tls is on its way to {told(aim)}; pods are made with {told(now, aim.secret)}; there are {pods}"
    if held := why_held(seen):
        return f"{text}. The authorities stay as they are: {held}{why_none_is_made(seen.group)}"
    return text + (f". It goes on, although {seen.trust.why_held}" if seen.trust.why_held else "")


def why_held(seen: Observed) -> str:
    """Why no pod is given the authorities that the spec names; empty also where a change that has begun goes on."""
    goes_on = made_with(seen.group.spec.tls) == aim_of(seen.wanted_tls, seen.trust.wanted)
    return "" if seen.trust.is_silence and goes_on else seen.trust.why_held


def lost_file(tls: TlsSpec | None) -> str:
    """The file of authorities that a pod made now would read, and whose text the operator has no more; empty: there is none.

    A part without the file connects without TLS, and no part that enforces it hears such a one.
    """
    return tls.file if isinstance(tls, TlsAsMade) and not tls.authorities else ""


def why_none_is_made(group: BrokerGroup) -> str:
    """As the next sentence of what is told; empty where pods are made."""
    if not (file := lost_file(group.spec.tls)):
        return ""
    config_map = names.config_map_name(identity.name_of(group))
    return (
        f". {file}, which the group's pods trust, was deleted from ConfigMap {config_map}, and no other copy is in the"
        " namespace: no pod is made or replaced before the bundle of the spec has those certificates again, or verifies every"
        " server"
    )


def keeping_pods(group: BrokerGroup, step: Step | None) -> Step | None:
    """The step, or its refusal if it stops a pod whose successor could not be made."""
    if step is None or step.verb not in {Verb.REPLACE, Verb.STOP} or not (why := why_none_is_made(group)):
        return step
    pod = step.member.pod if step.member is not None else "No pod"
    return dataclasses.replace(step, verb=Verb.REFUSE, reason=Reason.AUTHORITIES_HELD, why=f"{pod} is not stopped{why}")


def aim_of(wanted: TlsSpec | None, bundle: str) -> Made:
    """What pods are made with in the end."""
    if wanted is None:
        return Made()
    trusts = trust_file(bundle) if wanted.mode is TlsMode.ENFORCING else ""
    return Made(wanted.mode, wanted.certificate_secret_ref.name, trusts)


def made_with(tls: TlsSpec | None) -> Made:
    """What pods of this spec are made with."""
    return Made() if tls is None else Made(tls.mode, tls.certificate_secret_ref.name, trusted_file(tls))


def told(one: Made, secret: str = "") -> str:
    """In words: the mode, the authorities where they count, and the Secret where it is another one than this."""
    if one.mode is None:
        return "no TLS"
    trusts = f", trusts {one.trusts or 'ca.crt'}" if one.verifies else ""
    return f"{one.mode.value}{trusts}" + (f", Secret {one.secret}" if secret and one.secret != secret else "")
