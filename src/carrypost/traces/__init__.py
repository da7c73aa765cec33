"""Movement and contacts: their files in a dozen formats, and the search for encounters."""
