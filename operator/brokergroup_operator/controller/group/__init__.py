"""One broker group's state in this plane."""
