"""Windows: one operator, for windows of four kinds with any contents."""
