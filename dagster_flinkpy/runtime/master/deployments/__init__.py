"""What carries the tasks of an epoch: a Spark job, slots where they live, or this process."""
