"""Live telemetry of real nodes."""
