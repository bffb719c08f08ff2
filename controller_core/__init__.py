"""DECIDES. The replica group's state machine: election, SyncStateSet, broker identity, epochs, liveness.

Standard library only. No I/O, clock, randomness or threads: time and inputs are passed in, decisions are handed out.
"""
