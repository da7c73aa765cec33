"""STOMP: programs in any language use a node as if it were a broker."""
