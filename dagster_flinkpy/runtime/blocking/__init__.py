"""Blocking edges: durable segments on the store, and the Spark DataFrames that are written to them."""
