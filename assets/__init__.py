"""The reference deployment: the flights pipeline, run by Dagster (``dagster dev -w workspace.yaml``)."""
