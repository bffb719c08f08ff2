"""Show: what the verbs print, as text. Pure but for `watching`."""
