"""FENCES. The small process beside a broker that kills it when it may no longer be master and nobody outside can stop it.

Imports nobody of the operator: it has to stay small (30 MiB), and runs where there is no Kubernetes API.
"""
