"""Options of checkpoints and recovery, and whoever takes part in checkpoints."""
