"""An empty code location, with which ours is compared."""

from dagster import Definitions

defs = Definitions()
