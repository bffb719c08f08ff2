"""`kubectl brokergroup`: show broker groups, and request operations on them.

It writes BrokerGroupOperations and `spec.maintenance` of a BrokerGroup; `release` removes our finalizers if no operator is left to.
Everything it shows it has read from the API. It starts quickly: pykube-ng, no typed client, no kopf, and each verb imports what it
needs when it is called.
"""
