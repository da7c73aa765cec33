"""Messaging on one host: subscriptions and claims, queues, held topics, receipts, and the directory of names."""
