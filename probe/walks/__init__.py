"""Walks: planned inputs along K, and what the outputs say about the order (DESIGN fact 2)."""
