"""Keeps pytest-asyncio from making an event loop that nobody closes.

Before its first test it asks for the current loop to put it back later; on Python 3.11 that *creates* one, which the
garbage collector then reports as unclosed, in whichever test it happens to run. Saying "there is none" avoids it.
"""

import asyncio

asyncio.set_event_loop(None)
