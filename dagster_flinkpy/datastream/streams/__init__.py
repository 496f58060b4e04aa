"""Streams beside ``DataStream``: connected and broadcast ones, and what they have in common."""
