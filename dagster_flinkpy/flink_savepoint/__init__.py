"""Reads and writes savepoints of Apache Flink: pure Python, without a JVM. Of what is read, only data is unpickled.

The format is that of Flink 1.15 to 2.3: ``_metadata`` of versions 3 to 6, keyed state in the canonical format, and that
of the heap state backend in its native format.
"""
