"""`kubectl brokergroup`: look at broker groups and ask for what is done to them, by a person who waits.

It writes BrokerGroupOperations and `spec.maintenance` of a BrokerGroup, and `release` removes our finalizers where no operator
does. Everything else it says it has read from the API. Light to start: pykube-ng, no typed client, no kopf, and each verb imports
what it needs when it is called.
"""
