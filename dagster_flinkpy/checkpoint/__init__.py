"""Floor 4: when a checkpoint is taken, what it says, where it is kept and how it is restored."""
