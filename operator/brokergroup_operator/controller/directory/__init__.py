"""Which BrokerGroup a broker name belongs to, and which pod an address."""
