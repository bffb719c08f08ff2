"""A kubelet whose containers are local processes: pods without an engine, an image, or root.

It watches the pods of any Kubernetes API (the sandbox's or a real kube-apiserver, same code), gives them to its own node,
and runs each container as a process in a session of its own. What a program needs of a pod is kept as Kubernetes keeps it:
a new address at every pod start, the claim's volume that outlives the pod, SIGTERM and the grace period before SIGKILL,
restarts with back-off, exit codes, readiness, logs.

What it is not: no isolation of files, users, processes or memory. A mount is a rewriting of paths (``environment``), an image is
an entry of the ``ImageCatalogue``, and two pods see the same ``/proc``. The network (``network``) is either a fresh loopback
address per pod or, as root, a network namespace per pod on a bridge.

* ``process_kubelet`` puts the parts together and is what a caller starts;
* ``pod_worker`` is one pod's life, ``container`` one container's, ``process`` one process's;
* ``node`` does what the node, the scheduler and the volume controllers do elsewhere;
* ``status`` and ``reporting`` are what the API is told.
"""

from .environment import Image, ImageCatalogue
from .network import LoopbackNetwork, PodNetwork
from .process_kubelet import ProcessKubelet

__all__ = ["Image", "ImageCatalogue", "LoopbackNetwork", "PodNetwork", "ProcessKubelet"]
