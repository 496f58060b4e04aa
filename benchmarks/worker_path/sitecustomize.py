"""Python imports this at its start if the folder is in PYTHONPATH. So the Python workers of Spark are sampled, too."""

import os
import sys

if "FLINKPY_BENCH_SAMPLES" in os.environ and "dagster_flinkpy.runtime.worker_daemon" in sys.orig_argv:
    from benchmarks import sampling

    os.register_at_fork(after_in_child=sampling.start)  # the workers; a timer would outlive an exec() and kill Java
