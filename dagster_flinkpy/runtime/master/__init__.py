"""The driver's side of a job: the job loop, what it plans, and what it learns."""
