"""Files of Parquet, CSV, JSON lines and text."""
