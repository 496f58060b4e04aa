"""Keyed state in sorted columnar runs, and operator state."""
