"""What `kubectl get` prints: the rows and columns that the server makes."""
