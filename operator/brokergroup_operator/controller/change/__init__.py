"""A change of master: failover, switchover, fence, and telling the brokers. Read `failover.py` first.

Two lines decide: which member becomes master is `elect_master` (controller_core/election.py); which broker is told what next is
`next_effects` (controller_core/change.py), and `executor.py` does it. The way through all files, in order, is the table in
docs/concepts/architecture.md, "From a dead master to the next".
"""
