"""What an attempt measures and reports."""
