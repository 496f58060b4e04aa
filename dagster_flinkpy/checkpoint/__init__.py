"""Checkpoints: when they are taken, what they contain, where they are stored and how they are restored."""
