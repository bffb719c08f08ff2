"""What the plane asks of brokers, NameServers and other planes."""
