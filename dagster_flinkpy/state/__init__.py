"""Floor 3: keyed state in sorted columnar runs, and operator state."""
