"""What a Dagster run does with a job."""
