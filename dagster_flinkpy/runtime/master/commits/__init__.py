"""What becomes visible with a checkpoint: transactions, rows of sinks, hooks of the user."""
