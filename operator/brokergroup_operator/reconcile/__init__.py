"""The life of a group, pass by pass: `reconciler.py` fetches (see), evaluates and carries out (act); `run` starts its passes.

`evaluate.py` is the whole decision, in order. It is pure: it reads what was seen, `render` builds the objects that are wanted,
`decide` says what is done next, and `tell` writes status, conditions and Events. The files beside the folders are what all use.
"""
