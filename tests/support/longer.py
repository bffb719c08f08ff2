"""What `make test` leaves to `make test-all`, and what that leaves to `make test-nightly`: of each family all but those named here.

A family's stories start a sandbox, operators and replicas each, or walk through thousands of worlds; what is left of the
family in the shorter run shows that it works at all.
"""

from __future__ import annotations

# The family by its folder, its file or the beginning of its names, and the beginnings of the tests of it that the shorter run runs.
Families = dict[str, tuple[str, ...]]

# Not in `make test`.
LONGER: Families = {
    "tests/e2e/": ("tests/e2e/test_group_life.py", "tests/e2e/test_history.py", "tests/e2e/test_two_operators.py"),
    "tests/availability/": ("tests/availability/test_operator_pods.py",),
    "tests/demo/test_demo_ends.py": (),
    "tests/operations/test_whole_system.py": (),
    "tests/fuzz/test_fuzz.py::test_whatever_is_declared_is_reached": (),
    "tests/fuzz/test_fuzz.py::test_every_leaf_of_the_schema_was_drawn": (),
    "tests/core/test_every_way.py::test_every_life_of_a_pair": (
        "tests/core/test_every_way.py::test_every_life_of_a_pair[java]",
    ),
    "tests/core/test_every_way.py::test_every_birth": (),
    "tests/core/test_no_loss.py::test_long_lives_lose_nothing": (
        "tests/core/test_no_loss.py::test_long_lives_lose_nothing[V1]",
    ),
    "tests/core/test_properties.py::test_the_walk_reaches_every_state_that_matters": (),
    "tests/operations/test_killed_between_writes.py::test_a_kill_before_any_write_changes_nothing_in_the_end": (
        "tests/operations/test_killed_between_writes.py::test_a_kill_before_any_write_changes_nothing_in_the_end[drill",
    ),
    "tests/reconcile/test_crash_between_effects.py::test_a_kill_before_any_write_changes_nothing_in_the_end": (
        "tests/reconcile/test_crash_between_effects.py::test_a_kill_before_any_write_changes_nothing_in_the_end[a_slave_is",
    ),
    "tests/remoting/test_fuzzed_peers.py::test_fuzzed_frames_harm_nobody[tls": (),
    # Each takes one way of syncing away, and sees that a crash finds it; the crashes themselves are in `make test`.
    "tests/replica/test_crash_safety.py::test_a_replica_that_forgets_to_sync_is_found_out": (
        "tests/replica/test_crash_safety.py::test_a_replica_that_forgets_to_sync_is_found_out[names data-",
    ),
}


# Not in `make test-all` either. Beside each: what shows the same behaviour by day.
NIGHTLY: Families = {
    # Java masters are fenced and failed over by the lanes "two real nodes", "fence" and "switchover"; mqadmin: test_mqadmin.py.
    "tests/real/test_java_brokers.py": (),
    "tests/real/test_java_group.py": (),
    # In the sandbox with replicas by day; rolls of Java brokers: lane "switchover", `--rolls`.
    "tests/e2e/test_operations.py::test_another_version_rolls_though_the_operator_dies_in_the_middle[kube-apiserver]": (),
    "tests/e2e/test_voluntary.py::test_a_restart_goes_from_slave_to_slave_and_the_master_is_last[kube-apiserver]": (),
    "tests/e2e/test_java_learner.py::test_it_copies_and_nobody_waits_for_it[kube-apiserver]": (),
    "tests/e2e/test_java_learner.py::test_left_alone_it_is_no_second_disk_and_no_master[kube-apiserver]": (),
    # test_addressing.py::test_a_change_of_addressing_is_rolled_out, and Java's addresses in the file's other story.
    "tests/e2e/test_java_addressing.py::test_a_change_to_node_ports_is_rolled_out": (),
    # real/test_spark_rights.py makes a report by an executor in a pod; the archive is made by a lane, and every report uses it.
    "tests/sla/test_executors.py": (),
    "tests/sla/test_class_archive.py::test_spark_starts_from_the_archive_and_without_one_that_fits": (),
    # Walks that are the same each day. By day: properties, traces, and two of the three lives of a pair.
    "tests/core/test_every_way.py::test_every_birth": (),
    "tests/core/test_every_way.py::test_every_life_of_a_pair": (
        "tests/core/test_every_way.py::test_every_life_of_a_pair[java]",
        "tests/core/test_every_way.py::test_every_life_of_a_pair[strict]",
    ),
    # Lane "sieve" kills the operator before every write of seven workloads.
    "tests/operations/test_killed_between_writes.py::test_a_kill_before_any_write_changes_nothing_in_the_end": (
        "tests/operations/test_killed_between_writes.py::test_a_kill_before_any_write_changes_nothing_in_the_end[drill",
    ),
    "tests/reconcile/test_crash_between_effects.py::test_a_kill_before_any_write_changes_nothing_in_the_end": (
        "tests/reconcile/test_crash_between_effects.py::test_a_kill_before_any_write_changes_nothing_in_the_end[a_slave_is",
        "tests/reconcile/test_crash_between_effects.py::test_a_kill_before_any_write_changes_nothing_in_the_end[the_master_is",
    ),
    "tests/remoting/test_fuzzed_peers.py::test_fuzzed_frames_harm_nobody[tls-new_event_loop": (),
    "tests/replica/test_crash_safety.py::test_a_replica_that_forgets_to_sync_is_found_out": (
        "tests/replica/test_crash_safety.py::test_a_replica_that_forgets_to_sync_is_found_out[names data-",
        "tests/replica/test_crash_safety.py::test_a_replica_that_forgets_to_sync_is_found_out[data",
    ),
}


def is_longer(name: str) -> bool:
    """Whether `make test` leaves a test of this name to `make test-all`."""
    return _is_of(LONGER, name)


def is_nightly(name: str) -> bool:
    """Whether `make test-all` leaves a test of this name to `make test-nightly`."""
    return _is_of(NIGHTLY, name)


def _is_of(families: Families, name: str) -> bool:
    return any(name.startswith(family) and not name.startswith(kept) for family, kept in families.items())
