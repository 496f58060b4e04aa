"""The operators, which tasks run in Python workers."""
