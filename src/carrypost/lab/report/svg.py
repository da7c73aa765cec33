"""Pictures as small as can be: Vega's drawings, without invisible parts.

Coordinates are rounded to a tenth of a pixel, paths written with relative and one-way moves, marks that look alike and
follow each other become one path, names for scripts go. The picture scales with the page, and names no address.
"""

from __future__ import annotations

import re
import zlib
from html import escape

_TAG = re.compile(r"<[^>]+>")
_NUMBER = re.compile(r"(?<![\d.])-?(?:\d*\.\d+(?:e-?\d+)?|\d+e-\d+)")
_PLACES = 1
_DROPPED = re.compile(
    r' (?:class|version|xmlns(?::xlink)?|role|aria-[a-z]+|pointer-events|stroke-miterlimit|fill-opacity="1"|'
    r'stroke-opacity="1"|opacity="1"|stroke-width="1"|font-family|font-weight="normal")(?:="[^"]*")?(?=[ />])'
)
_LINE = re.compile(r'<line transform="translate\((-?[\d.]+),(-?[\d.]+)\)" x2="(-?[\d.]+)" y2="(-?[\d.]+)"([^>]*?)/>')
_PATH = re.compile(r'<path d="([^"]*)"([^>]*?)/>')
_POINTS = re.compile(r"([ML])(-?[\d.]+),(-?[\d.]+)")
_EMPTY = re.compile(
    r'<g(?: transform="[^"]*")?></g>|<path(?: [^>]*)? d=""[^>]*/>|<path d="M0,0h[-\d.]+v[-\d.]+h[-\d.]+Z"/>'
)
_CLIP = re.compile(r'(?<=id=")clip\d+|(?<=url\(#)clip\d+')
_SIZE = re.compile(r'<svg[^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>')
_SPACE = "http://www.w3.org/2000/svg"
FONT = "Helvetica, Arial, sans-serif"


def small(svg: str, title: str) -> str:
    """Return the same picture for the middle of a page, with a title for screen readers."""
    made = _DROPPED.sub("", svg)
    made = _TAG.sub(lambda tag: _NUMBER.sub(lambda match: _short(float(match[0])), tag[0]), made)
    made = _join_paths(_LINE.sub(_as_path, made))
    made = _PATH.sub(lambda match: f'<path d="{_relative(match[1])}"{match[2]}/>', made)
    before = ""
    while before != made:
        before, made = made, _EMPTY.sub("", made)
    made = _named(made, title)
    size = _SIZE.search(svg)
    assert size is not None, "Vega gives every picture a size"
    width, height = (float(each) for each in size.groups())
    looks = f'viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px" role="img"'
    head = f"<svg {looks}><title>{escape(title)}</title>"
    return re.sub(r"<svg[^>]*>", lambda _: head, made, count=1)


def alone(svg: str) -> str:
    """Return a picture of a page as a file: with a size, on white, in the page's letters."""
    size = _SIZE.match(svg)
    assert size is not None, "`small` gives every picture a size"
    width, height = size.groups()
    head = (
        f'<svg xmlns="{_SPACE}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="{FONT}">'
    )
    paper = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return f"{head}{paper}{svg[size.end() :]}\n"


def _named(svg: str, title: str) -> str:
    """Return the picture with names of its own: pictures of one page share them, and Vega continues to count."""
    names = list(dict.fromkeys(_CLIP.findall(svg)))
    plain = _CLIP.sub(lambda match: f"c{names.index(match[0])}", svg)
    own = f"{zlib.crc32((title + plain).encode()):x}"
    return _CLIP.sub(lambda match: f"c{own}-{names.index(match[0])}", svg)


def _short(number: float) -> str:
    text = f"{number:.{_PLACES}f}".removesuffix(".0")
    if text.startswith(("0.", "-0.")):
        return text.replace("0.", ".", 1)
    return "0" if text == "-0" else text


def _as_path(line: re.Match[str]) -> str:
    """Return a straight line that may be joined with others."""
    x, y, step_x, step_y, looks = line.groups()
    return f'<path d="M{x},{y}L{_short(float(x) + float(step_x))},{_short(float(y) + float(step_y))}"{looks}/>'


def _join_paths(svg: str) -> str:
    """Join consecutive paths that differ only in their shape."""
    parts: list[str] = []
    shapes: list[str] = []
    looks, at = "", 0
    for match in _PATH.finditer(svg):
        follows = match.start() == at and shapes
        if follows and match[2] == looks:
            shapes.append(match[1])
        else:
            parts.append(_path(shapes, looks))
            parts.append(svg[at : match.start()])
            shapes, looks = [match[1]], match[2]
        at = match.end()
    return "".join([*parts, _path(shapes, looks), svg[at:]])


def _path(shapes: list[str], looks: str) -> str:
    return f'<path d="{"".join(shapes)}"{looks}/>' if shapes else ""


def _relative(path: str) -> str:
    """Return a path of straight lines by single steps, in tenths of pixels all the same; others stay."""
    found = _POINTS.findall(path)
    if not found or _POINTS.sub("", path).strip():
        return path
    made: list[str] = []
    x = y = 0
    for command, *place in found:
        to_x, to_y = (round(float(each) * 10) for each in place)
        step_x, step_y = to_x - x, to_y - y
        if command == "M":
            made.append(f"M{_short(to_x / 10)},{_short(to_y / 10)}")
        elif step_x and step_y:
            made.append(f"l{_short(step_x / 10)},{_short(step_y / 10)}")
        elif step_x:
            made.append(f"h{_short(step_x / 10)}")
        elif step_y:
            made.append(f"v{_short(step_y / 10)}")
        x, y = to_x, to_y
    return "".join(made)
