"""Decide: what to do next, and what must wait; pure, each decision with its reason."""
