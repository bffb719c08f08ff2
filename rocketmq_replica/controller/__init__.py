"""The conversation with controllers, operators and NameServers: registration, role changes, live settings, leaving a group."""
