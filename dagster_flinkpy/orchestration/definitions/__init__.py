"""Builds what a code location defines: assets, jobs and checks."""
