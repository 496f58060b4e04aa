"""What sources have in common: splits that wait and end, and files that are known."""
