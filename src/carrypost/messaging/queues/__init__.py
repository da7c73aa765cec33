"""Queues: the manager of this node's own, and the receiver of messages from any."""
