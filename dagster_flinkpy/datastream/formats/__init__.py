"""Formats of records and files (``pyflink.datastream.formats``)."""
