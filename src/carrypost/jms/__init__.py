"""The programming model of JMS (Jakarta Messaging) for application programmers, in Python."""
