"""Builds the containers of a pod: the broker's, and beside it the fence's. Pure.

Where a process has no mount namespace of its own, all paths reach it through the environment, so nothing here names a path
twice. What must be written beside the store (Java's logs and temporary files, the filled-in broker.conf) goes to RUN_DIR.
The fence kills a broker that can't be reached from outside its pod. It shares the pod's process namespace and the broker's user,
so it needs no capability; it speaks to controllers and to the fences of the group, never to the Kubernetes API. What it does:
`brokergroup_operator.fence` (docs/concepts/architecture.md, rule 7).
"""

from __future__ import annotations

import shlex
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.network_fields import Addressing, IPFamily
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render import addressing, broker_config, certificate, proxy_config, stop_gate
from brokergroup_operator.reconcile.see import foreign

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
    from brokergroup_operator.reconcile.render.addressing import Place
    from brokergroup_operator.reconcile.settings import ReconcileSettings

JAVA_MAIN_CLASS: Final = "org.apache.rocketmq.broker.BrokerStartup"
# The Proxy starts the broker in its own process, from the same broker.conf.
JAVA_WITH_PROXY: Final = 'org.apache.rocketmq.proxy.ProxyStartup -pm local -pc "$CONFIG_DIR/{file}" -bc'
DEFAULT_JAVA_MEBIBYTES: Final = 512
# Classes, code, threads, garbage collection of a broker that has just started: 181 MiB (tests/real/test_java_memory.py).
JVM_OWN_MEBIBYTES: Final = 224
# The same of a Proxy in the broker's process, on top of that.
PROXY_OWN_MEBIBYTES: Final = 128
# Properties know no substitution, so sed fills in what only the pod knows.
JAVA_RENDER: Final = 'sed {} "$CONFIG_DIR/broker.conf" > "$RUN_DIR/broker.conf"'
# The secret is written by the shell itself: as an argument of another program it would stand in the process list.
JAVA_RENDER_CREDENTIALS: Final = (
    f"printf '{broker_config.CREDENTIALS_KEY}={broker_config.CREDENTIALS_FORM.format('%s', '%s')}\\n'"
    f' "${names.ENVIRONMENT_ACCESS_KEY}" "${names.ENVIRONMENT_SECRET_KEY}" >> "$RUN_DIR/broker.conf"'
)
# As Java's own brokerIP1 is written: without brackets only what cuts at the last colon finds the port of an IPv6 address.
JAVA_BRACKETS: Final = r"-e 's|^\(brokerIP[12]\)=\(.*:.*\)$|\1=[\2]|'"
JAVA_CHOICE: Final = 'for ip in $(echo "${all}" | tr , " "); do case "$ip" in *{mark}*) {name}=$ip; break;; esac; done'
# Of a group that began with a backup: part of one is no log, and its members would be brought in line with it.
JAVA_REFUSE_UNFINISHED: Final = (
    'for folder in {folders}; do if [ -e "$folder/restore-unfinished" ]; then'
    ' echo "$folder/restore-unfinished: a backup was copied here only in part; delete the claim" >&2; exit 1; fi; done'
)
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
    return settings.catalogue.image(spec.version or settings.rocketmq_version)


def runs_operators_image(spec: BrokerGroupSpec) -> bool:
    """Whether the broker runs the image of the operator's release, because the spec names none."""
    return spec.image is None and spec.implementation is Implementation.PYTHON


def broker_container(
    spec: BrokerGroupSpec, settings: ReconcileSettings, *, place: Place | None = None, learner: bool = False
) -> JsonObject:
    monitoring, started = spec.monitoring, command(spec, learner=learner)
    container: JsonObject = {
        "name": names.CONTAINER_BROKER,
        "image": image(spec, settings),
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": stop_gate.behind_gate(started) if pod_fence.wanted(spec) else started,
        "env": [
            *addressing.pod_addresses(spec),
            addressing.from_field("POD_NAME", "metadata.name"),
            {"name": "STORE_DIR", "value": names.STORE_DIR},
            {"name": "CONFIG_DIR", "value": names.CONFIG_DIR},
            {"name": "RUN_DIR", "value": names.RUN_DIR},
            *_commit_log_environment(spec),
            *addressing.environment(spec, place),
            *_credentials(spec),
            *certificate.broker_environment(spec),
            *((*_marks(names.CONTAINER_BROKER), *stop_gate.environment()) if pod_fence.wanted(spec) else ()),
        ],
        "ports": [
            {"name": names.PORT_BROKER, "containerPort": spec.network.listen_port},
            {"name": names.PORT_HA, "containerPort": spec.network.ha_port},
            # From there alone a Java slave copies its master's topics: a NetworkPolicy must let it through.
            {"name": names.PORT_FAST, "containerPort": spec.network.listen_port - names.FAST_PORT_OFFSET},
            # Where Prometheus finds the broker's own metrics, by name.
            *([{"name": names.PORT_METRICS, "containerPort": monitoring.port}] if monitoring.exporter else []),
            *({"name": name, "containerPort": port} for name, port in addressing.proxy_ports(spec).items()),
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
            *(stop_gate.mounts() if pod_fence.wanted(spec) else ()),
        ],
        # Never the HA port: each probe of it would make a Java broker keep an HA connection.
        "readinessProbe": {
            "tcpSocket": {"port": _last_port(spec)},
            **msgspec.to_builtins(spec.pod_template.spec.broker.readiness_probe),
        },
        "livenessProbe": {
            "exec": {"command": disk_probe(spec)},
            **msgspec.to_builtins(spec.pod_template.spec.broker.liveness_probe),
            "terminationGracePeriodSeconds": HUNG_GRACE_SECONDS,
        },
        "securityContext": restricted(),
    }
    if pod_fence.kills_the_isolated(spec):
        container["lifecycle"] = broker_lifecycle(spec)
    resources = {kind: values for kind, values in msgspec.to_builtins(spec.resources).items() if values}
    return container | ({"resources": resources} if resources else {})


def _last_port(spec: BrokerGroupSpec) -> int:
    """The port that opens last: a Proxy starts its broker, then its gRPC port, then this one."""
    return addressing.proxy_ports(spec).get(names.PORT_PROXY_REMOTING, spec.network.listen_port)


def disk_probe(spec: BrokerGroupSpec) -> list[str]:
    """Return the command that writes and syncs a small file on each disk of the broker; it fails only by not ending."""
    return ["sh", "-c", DISK_PROBE.format(folders=_folders(spec))]


def _folders(spec: BrokerGroupSpec) -> str:
    """The folders of the broker's data, as the shell expands them."""
    variables = ["STORE_DIR", *(entry["name"] for entry in _commit_log_environment(spec))]
    return " ".join(f'"${name}"' for name in variables)


def _commit_log_environment(spec: BrokerGroupSpec) -> list[JsonObject]:
    return [{"name": "COMMIT_LOG_DIR", "value": names.COMMIT_LOG_DIR}] if spec.storage.commit_log is not None else []


def _credentials(spec: BrokerGroupSpec) -> list[JsonObject]:
    """From the Secret itself: the pod waits for it, and no object of ours repeats it."""
    secret = spec.security.credentials_secret_name
    if secret is None:
        return []
    keys = {
        names.ENVIRONMENT_ACCESS_KEY: names.CREDENTIALS_ACCESS_KEY,
        names.ENVIRONMENT_SECRET_KEY: names.CREDENTIALS_SECRET_KEY,
    }
    entries = {name: {"secretKeyRef": {"name": secret, "key": key}} for name, key in keys.items()}
    return [{"name": name, "valueFrom": entry} for name, entry in entries.items()]


def command(spec: BrokerGroupSpec, *, learner: bool = False) -> list[str]:
    """One broker.conf serves all members, so a learner is one by an argument: no other member's configuration changes."""
    if spec.implementation is Implementation.PYTHON:
        own = ["--async-learner"] if learner else []
        return ["brokergroup", "replica", "--config", f"{names.CONFIG_DIR}/{names.CONFIG_FILE}", *own]
    # `exec` makes the JVM process 1: SIGTERM reaches it.
    with_proxy = JAVA_WITH_PROXY.format(file=proxy_config.local_file(spec))
    main = f"{JAVA_MAIN_CLASS} -c" if spec.local_proxy is None else with_proxy
    start = (
        f"exec java {' '.join([*certificate.java_arguments(spec), *java_arguments(spec)])}"
        ' -Duser.home="$RUN_DIR" -Djava.io.tmpdir="$RUN_DIR" -Drocketmq.home.dir="$ROCKETMQ_HOME"'
        f' -cp "$ROCKETMQ_HOME/lib/*" {main} "$RUN_DIR/broker.conf"'
    )
    further = [*_commit_log_environment(spec), *addressing.environment(spec, None)]
    filled_in = ["POD_IP", "STORE_DIR", *(entry["name"] for entry in further)]
    fillings = [rf'-e "s|\${{{name}}}|${name}|g"' for name in filled_in]
    if spec.network.broker_family == IPFamily.IPV6:
        fillings.append(JAVA_BRACKETS)  # another command of other groups would restart their pods by an upgrade
    render = " && ".join((*_choices(spec, filled_in), JAVA_RENDER.format(" ".join(fillings))))
    if learner:
        render = f"{render} && {JAVA_RENDER_LEARNER}"
    if spec.security.credentials_secret_name is not None:
        render = f"(umask 077 && {render} && {JAVA_RENDER_CREDENTIALS})"
    if spec.bootstrap is not None:  # another command of other groups would restart their pods by an upgrade
        render = f"{JAVA_REFUSE_UNFINISHED.format(folders=_folders(spec))}; {render}"
    return ["sh", "-c", f"{render} && {start}"]


def _choices(spec: BrokerGroupSpec, variables: list[str]) -> list[str]:
    """The shell's choice of an address of the group's family; the first address stays where there is none of it."""
    mark = ":" if spec.network.broker_family == IPFamily.IPV6 else "."
    all_of = {name: addressing.own_hosts(spec, name) for name in variables}
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
    own = JVM_OWN_MEBIBYTES + (0 if spec.local_proxy is None else PROXY_OWN_MEBIBYTES)
    room = max(mebibytes - own, mebibytes / 4)
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


# Not `brokergroup fence`: the command line alone would need more memory than the fence.
COMMAND: Final = ("python", "-m", "brokergroup_operator.fence")
# Beside a Python broker: it waits for an order, or for the deletion of the pod, and asks no peers (`fence/deletion.py`).
COMMAND_AT_DELETION: Final = ("python", "-m", "brokergroup_operator.fence.deletion")
PRE_STOP_STEPS_PER_SECOND: Final = 10
# A guarantee, with no limit beside it: a throttled fence is a frozen one. It uses 6m, and 10m while it asks; shares decide how
# soon it is woken.
# Beside 16 busy threads of a broker that asks for 2 CPUs, on 2 CPUs, it was late by 333 ms with 10m, and by 43 ms with 50m.
CPU_REQUEST: Final = "50m"


def restricted() -> JsonObject:
    """A container as Pod Security "restricted" wants it, with a read-only root file system."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def fence_container(group: BrokerGroup, settings: ReconcileSettings, *, place: Place | None = None) -> JsonObject:
    """The fence as this group's brokers need it."""
    isolates = pod_fence.kills_the_isolated(group.spec)
    own = _for_java(group, settings, place) if isolates else _for_replica(group.spec, settings)
    own["env"] += [*stop_gate.environment(), stop_gate.grace(group.spec.termination_grace_period_seconds)]
    own["volumeMounts"] = [*own.get("volumeMounts", []), *stop_gate.mounts()]
    requests = {"cpu": CPU_REQUEST, "memory": "32Mi"} if isolates else {"cpu": "5m", "memory": "24Mi"}
    return {
        "name": names.CONTAINER_FENCE,
        "image": settings.replica_image,
        "imagePullPolicy": group.spec.image_pull_policy.value,
        **own,
        "securityContext": restricted(),
        "resources": {"requests": requests, "limits": {"memory": "64Mi"}},
    }


def without_release(container: JsonObject) -> JsonObject:
    """A container as pods are compared: a fence without what the operator's release and its number of pods decide."""
    if container["name"] != names.CONTAINER_FENCE:
        return container
    # A running fence learns other addresses from the controllers that it asks.
    kept = {field: value for field, value in container.items() if field not in {"image", "command", "resources"}}
    return kept | {"env": [entry for entry in container["env"] if entry["name"] != pod_fence.FENCE_CONTROLLERS]}


def knows_a_controller(pod: JsonObject, wanted: JsonObject) -> bool:
    """Whether the fence was given an address that the wanted one gets too, so that it can learn the others; or it asks none."""
    given, now = (set(pod_fence.controllers_of(each).split(";")) for each in (pod, wanted))
    return bool(given & now)


def _for_replica(spec: BrokerGroupSpec, settings: ReconcileSettings) -> JsonObject:
    """It waits for the pod's deletion, and where there is a key for the operator's order."""
    own: JsonObject = {"command": list(COMMAND_AT_DELETION), "env": _marks(names.CONTAINER_FENCE)}
    if settings.fence_keys is None:
        return own
    own["env"] += [
        *addressing.pod_addresses(spec),
        {
            "name": "FENCE_LOCAL_ADDRESS",
            "value": f"$({addressing.own_hosts(spec, 'POD_IP')}):{spec.network.listen_port}",
        },
        *certificate.key_environment(settings),
    ]
    return own | {"ports": [_port(spec)], "volumeMounts": certificate.key_mounts(settings)}


def _port(spec: BrokerGroupSpec) -> JsonObject:
    number = spec.network.listen_port + names.FENCE_PORT_OFFSET
    return {"name": names.PORT_FENCE, "containerPort": number, "protocol": "UDP"}


def _for_java(group: BrokerGroup, settings: ReconcileSettings, place: Place | None) -> JsonObject:
    """It also kills a master that is cut off or was frozen, so it gets the addresses to ask and how long to wait."""
    spec = group.spec
    port, times = spec.network.listen_port, spec.failover.times
    authority = {"name": names.VOLUME_CONFIG, "mountPath": names.CONFIG_DIR, "readOnly": True}
    return {
        "command": list(COMMAND),
        "env": [
            addressing.from_field("POD_UID", "metadata.uid"),
            *addressing.pod_addresses(spec),
            {"name": "BROKERGROUP_CONTAINER", "value": names.CONTAINER_FENCE},
            {"name": "RUN_DIR", "value": names.RUN_DIR},
            {"name": "FENCE_BROKER_NAME", "value": broker_config.broker_name(str(group.metadata["name"]), spec)},
            *addressing.environment(spec, place),
            {
                "name": "FENCE_BROKER_ADDRESS",
                "value": f"$({addressing.own_hosts(spec, addressing.known_host(spec))}):{port}",
            },
            {"name": "FENCE_LOCAL_ADDRESS", "value": f"$({addressing.own_hosts(spec, 'POD_IP')}):{port}"},
            {"name": pod_fence.FENCE_CONTROLLERS, "value": ";".join(settings.controller_addresses)},
            {"name": "FENCE_ISOLATION_MILLISECONDS", "value": str(times.isolation_milliseconds)},
            {"name": pod_fence.FENCE_TIMEOUT, "value": str(times.fence_milliseconds)},
            {"name": pod_fence.FENCE_HEARTBEAT_TIMEOUT, "value": str(times.heartbeat_timeout_milliseconds)},
            {"name": "FENCE_HEARTBEAT_INTERVAL_MILLISECONDS", "value": str(times.heartbeat_interval_milliseconds)},
            *_pods(group),
            *_tls(spec, settings),
            *certificate.key_environment(settings),
        ],
        "ports": [_port(spec)],
        "volumeMounts": [
            {"name": names.VOLUME_RUN, "mountPath": names.RUN_DIR},
            # Whole volumes, not files: a single file would not follow a new authority or a renewed certificate.
            *([authority] if settings.controller_authority is not None else []),
            *(certificate.mounts(spec) if settings.controller_tls else []),
            *certificate.key_mounts(settings),
        ],
    }


def with_times_of(group: BrokerGroup, pod: JsonObject) -> BrokerGroup:
    """The group with the heartbeat timeout that the pod was made with, if that is shorter than the present one: it may keep it."""
    # All that its fence does must be done before the operator elects; by shorter times it does so sooner, and its broker sends
    # heartbeats more often. A fence with longer times would kill too late: its pod must be made anew.
    told = pod_fence.told(pod, pod_fence.FENCE_HEARTBEAT_TIMEOUT)
    if told is None or told >= group.spec.failover.heartbeat_timeout_milliseconds:
        return group
    failover = replace(group.spec.failover, heartbeat_timeout_milliseconds=told)
    return replace(group, spec=replace(group.spec, failover=failover))


def _pods(group: BrokerGroup) -> list[JsonObject]:
    """Where fences find each other behind load balancers, which carry no UDP: else an outage would look like isolation to each."""
    if group.spec.network.addressing is not Addressing.LOAD_BALANCER:
        return []
    service = names.members_service_name(identity.name_of(group))
    return [{"name": "FENCE_PODS", "value": f"{service}.{identity.namespace_of(group)}"}]


def _tls(spec: BrokerGroupSpec, settings: ReconcileSettings) -> list[JsonObject]:
    """TLS as for connections to the operator, and from it to brokers. The same in both modes: `enforcing` restarts no pod."""
    authority = {"name": "FENCE_CONTROLLER_CA", "value": f"{names.CONFIG_DIR}/{names.AUTHORITY_FILE}"}
    to_operator = [
        {"name": "FENCE_CONTROLLER_TLS", "value": "true"},
        *([authority] if settings.controller_authority is not None else []),
        *certificate.fence_environment(spec),
    ]
    from_operator = (
        [{"name": "FENCE_BROKER_TLS", "value": "true"}] if settings.broker_tls or spec.tls is not None else []
    )
    return (to_operator if settings.controller_tls else []) + from_operator


def _marks(container_name: str) -> list[JsonObject]:
    """The variables by which the fence finds the broker's processes among all that it sees."""
    pod_uid = addressing.from_field("POD_UID", "metadata.uid")
    return [pod_uid, {"name": "BROKERGROUP_CONTAINER", "value": container_name}]


def broker_lifecycle(spec: BrokerGroupSpec) -> JsonObject:
    """SIGTERM waits until the fence notes that the broker is no master, or a bound: a plain one leaves no master for about 9 s."""
    wait = (
        f"i=0; while [ $i -lt {broker_config.hand_over_seconds(spec) * PRE_STOP_STEPS_PER_SECOND} ]"
        ' && [ "$(cat "$RUN_DIR/role" 2>/dev/null)" = master ]; do sleep 0.1; i=$((i+1)); done'
    )
    return {"preStop": {"exec": {"command": ["sh", "-c", wait]}}}
