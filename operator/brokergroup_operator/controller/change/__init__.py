"""A change of master: failover, switchover, fence, and telling the brokers. Read `failover.py` first."""
