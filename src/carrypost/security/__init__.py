"""Who somebody is, and what they vouched for."""
