"""Moves messages over a link: requests, pieces, the window, acknowledgements."""
