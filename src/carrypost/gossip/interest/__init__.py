"""Who wants what: profiles, and which messages match them."""
