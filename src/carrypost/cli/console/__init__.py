"""`carrypost console`: topics, queues and names by lines, as the JOMS console had them."""
