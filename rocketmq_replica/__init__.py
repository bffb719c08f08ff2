"""REPLICATES. A broker replica in Python: a readable reference of RocketMQ's AutoSwitchHA, for the quick start and the tests.

The rooms, each importing only those after it (`pyproject.toml` holds this):

- `container`: the process, or several replicas in one
- `controller` and `clients`: requests of controllers, operators, producers and consumers
- `ha`: the links between master and slaves
- `term`: roles, epochs, acknowledgement
- `metadata` and `configuration`: tables and settings
- `log`: what is on the disk, and what of it is durable
"""
