"""What application programmers see: the programming model of JMS (Jakarta Messaging), in Python."""
