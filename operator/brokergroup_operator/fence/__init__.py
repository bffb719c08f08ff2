"""The fence: the small process beside a broker that kills it when it may no longer be master and cannot be stopped from outside.

It imports nothing of the operator: it must stay small (30 MiB), and runs without access to the Kubernetes API.
"""
