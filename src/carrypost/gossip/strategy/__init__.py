"""What a contact begins with and what is offered."""
