"""Blocking edges: durable segments in the object store, and the Spark DataFrames that are written to them."""
