"""Which caller may ask what."""
