"""Status, conditions and Events of what was seen and decided."""
