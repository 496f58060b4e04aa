"""What tables of Delta Lake and Iceberg have in common."""
