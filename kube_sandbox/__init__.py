"""A Kubernetes API and a node in one process, for the tests and demos of an operator: no cluster, no container engine, no root.

``api_server`` is an embedded Kubernetes API, ``kubelet`` runs pods as local processes, ``client`` is the kubelet's own client, and
``sandbox`` puts them together. It knows nothing of the operator that it serves: kinds come as CustomResourceDefinitions, images as
a catalogue of local programs.
"""
