"""What records are as columns: types, casts, text and messages."""
