"""The code location that ours is compared with: Dagster's definitions of nothing."""

from dagster import Definitions

defs = Definitions()
