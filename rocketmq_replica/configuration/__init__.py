"""What `broker.conf` and `container.conf` say, and how a replica dials and is dialled."""
