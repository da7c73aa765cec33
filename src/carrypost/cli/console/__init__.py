"""`carrypost console`: topics, queues and names by lines, as the JOMS console had them."""


class Interrupted(Exception):  # noqa: N818 - no error
    """Ctrl-C while a line was typed, or carried out."""
