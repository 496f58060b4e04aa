"""Runs jobs. The driver is in ``master/``, the Python workers are in ``task/`` and ``operators/``."""
