"""When checkpoints are triggered, and what becomes of them (Flink: ``CheckpointCoordinator``). Pure rules."""
