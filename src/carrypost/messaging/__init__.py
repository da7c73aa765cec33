"""Messaging on one host: subscriptions, and their claims to messages."""
