"""An embedded Kubernetes API: small, in process, and strict where an operator would notice the difference.

The heart is `store.ObjectStore`: objects, resource versions, patches, finalizers, watches. It has no sockets and no
clock of its own, so a simulation drives it directly. `server.SandboxApiServer` puts HTTP in front of it, well enough
for kubectl, kopf, the official client and pykube to work unmodified.
"""
