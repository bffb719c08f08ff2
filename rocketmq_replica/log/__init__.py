"""The log of one replica and what lies beside it on the disk: no sockets, no event loop."""
