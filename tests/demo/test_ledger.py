from brokergroup_operator.demo.client import Ledger


def test_what_was_acknowledged_and_is_not_in_the_log_is_missing() -> None:
    ledger = Ledger()
    ledger.acknowledge("a", 1.0)
    ledger.acknowledge("b", 2.0)
    ledger.fail()
    assert ledger.missing_from({"a", "unknown"}) == ["b"]
    assert ledger.missing_from({"a", "b"}) == []


def test_the_first_acknowledgement_after_a_fault_is_found() -> None:
    ledger = Ledger()
    for at_seconds in (1.0, 2.0, 3.0, 4.0):
        ledger.acknowledge(f"m{at_seconds}", at_seconds)
    first = ledger.first_after(2.5)
    assert first is not None
    assert first.key == "m3.0"
    assert ledger.first_after(9.0) is None


def test_the_rate_counts_only_its_window() -> None:
    ledger = Ledger()
    for tenth in range(100):
        ledger.acknowledge(str(tenth), tenth / 10)
    assert ledger.rate_per_second(now_seconds=9.9, window_seconds=2.0) == 10.5
