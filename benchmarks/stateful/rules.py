"""The numbers of the programs of the stateful suite, for all sides. Without imports: peers use it, too."""

PARTITIONS = 2
"""Files of each slice of the input, and parallelism."""
TTL = 3_600_000
"""Milliseconds after which an id is forgotten."""
TOP = 5
"""Number of greatest amounts."""
GAP = 30_000
"""Milliseconds without events that end a session."""
SMALL, LARGE, SUSPICIOUS = 10_000, 90_000, 60_000
"""Amounts below and above which a payment is small or large; milliseconds from the one to the other."""
WITHIN = 10_000
"""Milliseconds after an order within which its payment counts."""
ALPHA = 0.125
"""Share of a new value in a moving average."""
