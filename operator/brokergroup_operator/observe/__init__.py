"""What the operator reports about itself: metrics, Events, the incident log."""
