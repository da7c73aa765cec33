"""Acknowledgements by recipients: made, kept, compared and passed on, and copies that nobody needs any more."""
