"""What a job's store tells about the job: its operators, checkpoints, metrics and where its time goes."""
