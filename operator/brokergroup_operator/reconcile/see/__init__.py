"""See: what a pass observed of a group, as values; nothing here decides."""
