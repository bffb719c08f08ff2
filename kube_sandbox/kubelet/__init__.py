"""A kubelet whose containers are local processes: pods without a container engine, an image, or root.

It watches the pods of any Kubernetes API, binds them to its own node, and runs each container as a process in a session of its own.
As under Kubernetes a pod has a new address at each start, volumes of claims that outlive it, SIGTERM and a grace period before
SIGKILL, restarts with back-off, exit codes, probes and logs. There is no isolation of files, users, processes or memory.
"""

from .environment import Image, ImageCatalogue
from .network import LoopbackNetwork, PodNetwork
from .process_kubelet import ProcessKubelet

__all__ = ["Image", "ImageCatalogue", "LoopbackNetwork", "PodNetwork", "ProcessKubelet"]
