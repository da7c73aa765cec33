"""The laboratory: traces to contacts, contacts to campaigns of emulated runs, runs to the papers' tables, on Spark."""
