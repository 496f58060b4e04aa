"""Topics of Kafka: what executes the declarations of ``datastream.connectors.kafka``."""
