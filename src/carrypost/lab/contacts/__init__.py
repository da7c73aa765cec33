"""From positions to contacts, on Spark or in one process."""
