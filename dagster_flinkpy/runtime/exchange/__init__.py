"""The pipelined exchange between tasks that live: result partitions, input gates, and messages between processes."""
