"""Asking fast: answers for many problems without running anything, and what changed between two tables of them (docs/ask.md)."""
