"""Builds the container of the broker itself: its command, environment, mounts and probes. Pure.

Where a process has no mount namespace of its own, all paths reach it through the environment, so nothing here names a path
twice. What must be written beside the store (Java's logs and temporary files, the filled-in broker.conf) goes to RUN_DIR.
"""

from __future__ import annotations

import shlex
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.network_fields import IPFamily
from brokergroup_operator.reconcile.render import certificate, fence_container
from brokergroup_operator.reconcile.render.addressing import environment, own_hosts, pod_addresses
from brokergroup_operator.reconcile.render.broker_config import CREDENTIALS_FORM, CREDENTIALS_KEY
from brokergroup_operator.reconcile.see import foreign

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroupSpec
    from brokergroup_operator.reconcile.render.addressing import Place
    from brokergroup_operator.reconcile.settings import ReconcileSettings

JAVA_MAIN_CLASS: Final = "org.apache.rocketmq.broker.BrokerStartup"
DEFAULT_JAVA_MEBIBYTES: Final = 512
# Classes, code, threads, garbage collection of a broker that has just started: 181 MiB (tests/real/test_java_memory.py).
JVM_OWN_MEBIBYTES: Final = 224
# Properties know no substitution, so sed fills in what only the pod knows.
JAVA_RENDER: Final = 'sed {} "$CONFIG_DIR/broker.conf" > "$RUN_DIR/broker.conf"'
# The secret is written by the shell itself: as an argument of another program it would stand in the process list.
JAVA_RENDER_CREDENTIALS: Final = (
    f"printf '{CREDENTIALS_KEY}={CREDENTIALS_FORM.format('%s', '%s')}\\n'"
    f' "${names.ENVIRONMENT_ACCESS_KEY}" "${names.ENVIRONMENT_SECRET_KEY}" >> "$RUN_DIR/broker.conf"'
)
# As Java's own brokerIP1 is written: without brackets only what cuts at the last colon finds the port of an IPv6 address.
JAVA_BRACKETS: Final = r"-e 's|^\(brokerIP[12]\)=\(.*:.*\)$|\1=[\2]|'"
JAVA_CHOICE: Final = 'for ip in $(echo "${all}" | tr , " "); do case "$ip" in *{mark}*) {name}=$ip; break;; esac; done'
JAVA_RENDER_LEARNER: Final = 'echo asyncLearner=true >> "$RUN_DIR/broker.conf"'
# Only a disk that does not answer fails it: a full disk, a read-only one, or an image without `dd` is an answer, and no restart
# would mend it. The shell stays the probe's process (`exit 0`): at the timeout the runtime kills that one and waits for its end,
# and a `dd` that waits for a hung disk can't be killed. So `dd` does not hold the probe's output either.
DISK_PROBE: Final = (
    'for folder in {folders}; do dd if=/dev/zero of="$folder/.disk-probe" bs=512 count=1 conv=fsync; done'
    " >/dev/null 2>&1; exit 0"
)
# Of a broker whose disk hangs nothing more can be written, so neither preStop nor a shutdown is waited for.
HUNG_GRACE_SECONDS: Final = 5


def image(spec: BrokerGroupSpec, settings: ReconcileSettings) -> str:
    if spec.image is not None:
        return spec.image
    if runs_operators_image(spec):
        return settings.replica_image
    return f"{settings.rocketmq_image_repository}:{spec.version or settings.rocketmq_version}"


def runs_operators_image(spec: BrokerGroupSpec) -> bool:
    """Whether the broker runs the image of the operator's release, because the spec names none."""
    return spec.image is None and spec.implementation is Implementation.PYTHON


def broker_container(
    spec: BrokerGroupSpec, settings: ReconcileSettings, *, place: Place | None = None, learner: bool = False
) -> JsonObject:
    monitoring = spec.monitoring
    container: JsonObject = {
        "name": names.CONTAINER_BROKER,
        "image": image(spec, settings),
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": command(spec, learner=learner),
        "env": [
            *pod_addresses(spec),
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "STORE_DIR", "value": names.STORE_DIR},
            {"name": "CONFIG_DIR", "value": names.CONFIG_DIR},
            {"name": "RUN_DIR", "value": names.RUN_DIR},
            *_commit_log_environment(spec),
            *environment(spec, place),
            *_credentials(spec),
            *certificate.broker_environment(spec),
            *(fence_container.broker_environment() if pod_fence.wanted(spec) else ()),
        ],
        "ports": [
            {"name": names.PORT_BROKER, "containerPort": spec.network.listen_port},
            {"name": names.PORT_HA, "containerPort": spec.network.ha_port},
            # From there alone a Java slave copies its master's topics: a NetworkPolicy must let it through.
            {"name": names.PORT_FAST, "containerPort": spec.network.listen_port - names.FAST_PORT_OFFSET},
            # Where Prometheus finds the broker's own metrics, by name.
            *([{"name": names.PORT_METRICS, "containerPort": monitoring.port}] if monitoring.exporter else []),
        ],
        "volumeMounts": [
            {"name": names.VOLUME_STORE, "mountPath": names.STORE_DIR},
            *(
                [{"name": names.VOLUME_COMMIT_LOG, "mountPath": names.COMMIT_LOG_DIR}]
                if spec.storage.commit_log
                else []
            ),
            {"name": names.VOLUME_CONFIG, "mountPath": names.CONFIG_DIR, "readOnly": True},
            {"name": names.VOLUME_RUN, "mountPath": names.RUN_DIR},
            *certificate.mounts(spec),
        ],
        # Never the HA port: each probe of it would make a Java broker keep an HA connection.
        "readinessProbe": {
            "tcpSocket": {"port": spec.network.listen_port},
            **msgspec.to_builtins(spec.pod_template.spec.broker.readiness_probe),
        },
        "livenessProbe": {
            "exec": {"command": disk_probe(spec)},
            **msgspec.to_builtins(spec.pod_template.spec.broker.liveness_probe),
            "terminationGracePeriodSeconds": HUNG_GRACE_SECONDS,
        },
        "securityContext": fence_container.restricted(),
    }
    resources = {
        name: values
        for name, values in (("requests", spec.resources.requests), ("limits", spec.resources.limits))
        if values
    }
    if pod_fence.kills_the_isolated(spec):
        container["lifecycle"] = fence_container.broker_lifecycle(spec)
    return container | ({"resources": resources} if resources else {})


def disk_probe(spec: BrokerGroupSpec) -> list[str]:
    """Return the command that writes and syncs a small file on each disk of the broker; it fails only by not ending."""
    variables = ["STORE_DIR", *(entry["name"] for entry in _commit_log_environment(spec))]
    return ["sh", "-c", DISK_PROBE.format(folders=" ".join(f'"${name}"' for name in variables))]


def _commit_log_environment(spec: BrokerGroupSpec) -> list[JsonObject]:
    return [{"name": "COMMIT_LOG_DIR", "value": names.COMMIT_LOG_DIR}] if spec.storage.commit_log is not None else []


def _credentials(spec: BrokerGroupSpec) -> list[JsonObject]:
    """From the Secret itself: the pod waits for it, and no object of ours repeats it."""
    secret = spec.security.credentials_secret_name
    if secret is None:
        return []
    return [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for variable, key in (
            (names.ENVIRONMENT_ACCESS_KEY, names.CREDENTIALS_ACCESS_KEY),
            (names.ENVIRONMENT_SECRET_KEY, names.CREDENTIALS_SECRET_KEY),
        )
    ]


def command(spec: BrokerGroupSpec, *, learner: bool = False) -> list[str]:
    """One broker.conf serves all members, so a learner is one by an argument: no other member's configuration changes."""
    if spec.implementation is Implementation.PYTHON:
        own = ["--async-learner"] if learner else []
        return ["brokergroup", "replica", "--config", f"{names.CONFIG_DIR}/{names.CONFIG_FILE}", *own]
    # `exec` makes the JVM process 1: SIGTERM reaches it.
    start = (
        f"exec java {' '.join([*certificate.java_arguments(spec), *java_arguments(spec)])}"
        ' -Duser.home="$RUN_DIR" -Djava.io.tmpdir="$RUN_DIR" -Drocketmq.home.dir="$ROCKETMQ_HOME"'
        f' -cp "$ROCKETMQ_HOME/lib/*" {JAVA_MAIN_CLASS} -c "$RUN_DIR/broker.conf"'
    )
    further = [*_commit_log_environment(spec), *environment(spec, None)]
    filled_in = ["POD_IP", "STORE_DIR", *(entry["name"] for entry in further)]
    fillings = [rf'-e "s|\${{{name}}}|${name}|g"' for name in filled_in]
    if (
        spec.network.broker_family == IPFamily.IPV6
    ):  # another command of other groups would restart their pods by an upgrade
        fillings.append(JAVA_BRACKETS)
    render = " && ".join((*_choices(spec, filled_in), JAVA_RENDER.format(" ".join(fillings))))
    if learner:
        render = f"{render} && {JAVA_RENDER_LEARNER}"
    if spec.security.credentials_secret_name is not None:
        render = f"(umask 077 && {render} && {JAVA_RENDER_CREDENTIALS})"
    return ["sh", "-c", f"{render} && {start}"]


def _choices(spec: BrokerGroupSpec, variables: list[str]) -> list[str]:
    """The shell's choice of an address of the group's family; the first address stays where there is none of it."""
    mark = ":" if spec.network.broker_family == IPFamily.IPV6 else "."
    all_of = {name: own_hosts(spec, name) for name in variables}
    return [JAVA_CHOICE.format(all=every, mark=mark, name=name) for name, every in all_of.items() if every != name]


def _java_mebibytes(spec: BrokerGroupSpec) -> tuple[int, int]:
    """Heap and direct memory. Of a small limit less than the spec's shares, so that the JVM's own part is left beside them."""
    limit = spec.resources.limits.get("memory")
    # Kubernetes takes a limit of nought for none.
    if not limit or not foreign.parse_quantity(limit):
        return DEFAULT_JAVA_MEBIBYTES, DEFAULT_JAVA_MEBIBYTES
    mebibytes = foreign.parse_quantity(limit) / 2**20
    heap, direct = mebibytes * spec.jvm.heap_percent / 100, mebibytes * spec.jvm.direct_memory_percent / 100
    # Below that nothing helps; a container of 128 MiB is killed either way.
    room = max(mebibytes - JVM_OWN_MEBIBYTES, mebibytes / 4)
    shrunk = min(Fraction(1), room / (heap + direct))
    return int(heap * shrunk), int(direct * shrunk)


def java_arguments(spec: BrokerGroupSpec) -> list[str]:
    """Heap and direct memory as shares of limits.memory, then what the user adds, which therefore wins."""
    heap, direct = _java_mebibytes(spec)
    return [
        f"-Xms{heap}m",
        f"-Xmx{heap}m",
        f"-XX:MaxDirectMemorySize={direct}m",
        "-XX:+UseG1GC",
        "-XX:-UseLargePages",
        "-XX:-UsePerfData",
        # They stand in a line of a shell, which would take `;`, `*` and others for its own.
        *map(shlex.quote, spec.jvm.extra_arguments),
    ]
