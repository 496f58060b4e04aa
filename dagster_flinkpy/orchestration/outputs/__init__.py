"""What the functions of Dagster assets write, in transactions that replace what was there."""
