"""REPLICATES. A broker replica in Python: a readable reference of RocketMQ's AutoSwitchHA, for the quick start and the tests.

Each part imports only those after it (`pyproject.toml` holds this):

- `broker_container`, `process`: the process, of one replica or of several; `request_dispatcher` and `upkeep` belong to it
- `controller` and `clients`: requests of controllers, operators, producers and consumers
- `ha`: the links between master and slaves
- `broker`, `master_term`, `sync_state`, `role_change`: roles, epochs, acknowledgement
- `tables`, `topics`, `configuration`, `property_values`: tables and settings
- `log`: what is on the disk, and what of it is durable
"""
