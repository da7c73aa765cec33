"""Acknowledgements by recipients: made, kept, compared and passed on, and copies that no node needs any more."""
