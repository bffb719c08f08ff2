"""The reconcile plane: kopf handlers, and pure builders of pods, volumes, services and configuration."""
