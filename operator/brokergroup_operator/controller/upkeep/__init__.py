"""What the plane looks after without haste: metadata, links, sets that came apart."""
