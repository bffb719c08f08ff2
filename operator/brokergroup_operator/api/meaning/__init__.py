"""Meaning: what a spec, an annotation or a Secret says, where more than one field says it. Pure."""
