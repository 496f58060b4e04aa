"""The Python worker's side of a job: the task, its gates, barriers and watermarks."""
