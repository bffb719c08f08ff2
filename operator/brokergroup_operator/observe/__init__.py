"""What the operator tells about itself: metrics, Events, the incident log."""
