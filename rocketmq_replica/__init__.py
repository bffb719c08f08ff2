"""REPLICATES. A broker replica in Python: commit log, epoch file, AutoSwitchHA both ways, acknowledgement, role changes.

The protocol logic is sans-I/O; asyncio adapters carry it.
"""
