"""The built-in kinds: one table of them, and what kube-apiserver fills in, refuses and does differently for each."""
