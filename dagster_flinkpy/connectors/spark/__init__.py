"""Python data sources of Spark."""
