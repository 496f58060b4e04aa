"""Floor 5: Spark sessions, the job of a micro-batch, exchanges, the job loop and failover."""
