"""The shuffle between two stages: its rows, the record writer, and who receives a record."""
