"""The objects: what a write must pass, revisions and watches, deletion and its garbage, without sockets."""
