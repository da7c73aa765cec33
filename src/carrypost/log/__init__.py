"""Events for drivers, the record of events, the journal of changes to be stored, and files of results."""
