"""Who is there: announcements, neighbours, and where their frames go."""
