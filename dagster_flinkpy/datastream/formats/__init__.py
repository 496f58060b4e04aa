"""Formats of records (``pyflink.datastream.formats``)."""
