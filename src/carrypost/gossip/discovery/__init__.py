"""Discovery: announcements, neighbours, and the routing of their frames."""
