"""The frames of brokers: decoded, decided by the group, answered."""
