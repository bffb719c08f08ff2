"""The process: one replica, or several in a BrokerContainer, put together, supervised and ended in order."""
