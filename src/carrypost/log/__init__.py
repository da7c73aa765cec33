"""What happened and what is kept: events for drivers, their record, the journal of changes, and files of results."""
