"""What two-phase-commit sinks have in common: staged files and rows, and the ledger of outputs."""
