"""Movement and contacts: their files in a dozen formats, and who meets whom."""
