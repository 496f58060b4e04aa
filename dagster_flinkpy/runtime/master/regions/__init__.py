"""The regions of an execution attempt, which run and restart each on their own."""
