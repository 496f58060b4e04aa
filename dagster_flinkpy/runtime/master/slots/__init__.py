"""The slots of a job: which subtasks run where, and what a slot has."""
