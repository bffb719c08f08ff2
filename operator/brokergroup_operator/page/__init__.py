"""The live page: every broker group at a glance, and a failover as it happens.

A reader's way through it: ``feed.py`` looks at the controller plane, in the plane's own loop, for a bounded time each turn;
what it saw goes to the thread of ``live_page.py``, where everything else happens: ``board.py`` keeps the latest picture of each
group and what changed since, ``rows.py``, ``group_document.py`` and ``node_document.py`` say what is shown of it,
``what_if.py`` answers what would happen if a member or a node went away, ``access.py`` checks viewers, ``server.py`` serves it.
``static/`` is what the browser gets: no build step, nothing from elsewhere.

The page reads. It changes nothing, neither here nor in Kubernetes.
"""
