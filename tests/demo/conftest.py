"""Fixtures of the tests of the sandbox: those of a running replica."""

from tests.replica.conftest import controller, routes

__all__ = ["controller", "routes"]
