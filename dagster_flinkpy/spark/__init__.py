"""Spark sessions, the shared Spark Connect server, Java and processes. Nothing here knows about streams."""
