"""RECONCILES. The operator: the controller plane, the reconcile plane, and the sandbox they run on without a cluster."""
