"""Fields: the parts of a BrokerGroup's spec and status, as types."""
