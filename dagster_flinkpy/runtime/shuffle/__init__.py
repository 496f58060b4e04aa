"""The shuffle between two stages: its rows, the record writer, and the selection of receivers."""
