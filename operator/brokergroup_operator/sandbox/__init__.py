"""The embedded Kubernetes API and the process kubelet, for the quick start and the tests."""
