"""The Python workers' side of a job: tasks, input gates, barriers and watermarks."""
