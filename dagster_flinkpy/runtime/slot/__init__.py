"""A slot: a long task of Spark, in whose process subtasks of a job live."""
