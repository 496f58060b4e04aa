"""Floor 5: what runs a job. The driver is in ``master/``, the Python workers in ``task/`` and ``operators/``."""
