"""Forks of jobs, whose checkpoints share files with other jobs, and the disposal of jobs."""
