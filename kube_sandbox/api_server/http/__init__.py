"""HTTP in front of the store: paths to targets, verbs, watches, discovery."""
