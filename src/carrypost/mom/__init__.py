"""Messaging on one host: subscriptions, and what is owed to them."""
