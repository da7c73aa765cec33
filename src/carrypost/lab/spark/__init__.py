"""The one Spark session, and what is needed for it."""
