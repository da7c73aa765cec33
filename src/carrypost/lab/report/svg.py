"""Pictures as Vega draws them, for the middle of a page and as files."""

from __future__ import annotations

import re
import zlib
from html import escape

_CLIP = re.compile(r'(?<=id=")clip\d+|(?<=url\(#)clip\d+')
_HEAD = re.compile(r'<svg[^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>')
_FOR_SCRIPTS = re.compile(r' (?:class|role|aria-[a-z]+|pointer-events)="[^"]*"')
_PATH = re.compile(r'(?<= d=")[^"]+')
_INVISIBLE = re.compile(r"(?<=\.\d\d)\d+")
"""Digits of places that are less than a hundredth of a pixel."""
_SPACE = "http://www.w3.org/2000/svg"
FONT = "Helvetica, Arial, sans-serif"


def inline(drawn: str, title: str) -> str:
    """Return a picture that scales with the page, with a title for screen readers instead of names of its parts."""
    drawn = _PATH.sub(lambda match: _INVISIBLE.sub("", match[0]), _FOR_SCRIPTS.sub("", drawn))
    names = list(dict.fromkeys(_CLIP.findall(drawn)))
    # Pictures of one page share their names, and Vega continues to count from one picture to the next.
    plain = _CLIP.sub(lambda match: f"c{names.index(match[0])}", drawn)
    own = f"{zlib.crc32((title + plain).encode()):x}"
    named = _CLIP.sub(lambda match: f"c{own}-{names.index(match[0])}", drawn)
    size = _HEAD.match(named)
    assert size is not None, "Vega gives every picture a size"
    width, height = size.groups()
    looks = f'viewBox="0 0 {width} {height}" style="max-width:{width}px" role="img"'
    return f"<svg {looks}><title>{escape(title)}</title>{named[size.end() :]}"


def alone(picture: str) -> str:
    """Return a picture of a page as a file: with a size, on white, in the page's letters."""
    size = _HEAD.match(picture)
    assert size is not None, "`inline` gives every picture a size"
    width, height = size.groups()
    head = (
        f'<svg xmlns="{_SPACE}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="{FONT}">'
    )
    return f'{head}<rect width="{width}" height="{height}" fill="#fff"/>{picture[size.end() :]}\n'
