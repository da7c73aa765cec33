"""Access to the pages: only for browsers on this machine that were given the token, and only for our own pages.

Any program on this machine can reach the port, and so can pages of other sites in the user's browser. So every request
needs the cookie, which a browser gets once by the token in the address that the command prints; a `Host` that is this
machine, since other names may lead here; and, where the browser tells which site asks, that it is ours. The cookie is
named by the port: browsers share cookies between ports, and two servers must not take each other's away.

The one invariant: no answer, an error included, leaves without the headers below.
"""

from __future__ import annotations

import secrets
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_REPORT = "/report/"
REPORT_HEADERS = HEADERS | {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
}
"""Headers of reports, which have styles and pictures of their own, and may do nothing."""
_SITES = {"none", "same-origin"}
_METHODS = {"GET", "HEAD", "POST"}
_LOCKED = "This address needs the token: open the address that `carrypost web` printed.\n"


class Access:
    """Lets requests through to the pages that may see them."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self.port = port
        self.token = secrets.token_urlsafe(32)
        self._codes: set[str] = set()
        """Codes that may be used once, in place of the token."""
        self._hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        self._cookie = f"carrypost-{port}"

    @property
    def url(self) -> str:
        """The address that people open."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def url_once(self) -> str:
        """Return an address for one use: those that list the processes of this machine see it."""
        self._codes.add(code := secrets.token_urlsafe(32))
        return f"http://{HOST}:{self.port}/?token={code}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the pages answer it."""
        if scope["type"] != "http":
            return

        is_report = scope["path"].startswith(_REPORT)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(REPORT_HEADERS if is_report else HEADERS)
            await send(message)

        refusal = self._refusal(scope, Headers(scope=scope))
        await (self._app if refusal is None else refusal)(scope, receive, with_headers)

    def _refusal(self, scope: MutableMapping[str, Any], headers: Headers) -> Response | None:
        """Return the answer to a request that the pages must not see; None: they may."""
        if len(headers.getlist("host")) != 1 or headers["host"].lower() not in self._hosts:
            return PlainTextResponse("The address must be 127.0.0.1 or localhost, with this port.\n", 421)
        if headers.get("sec-fetch-site", "none") not in _SITES:
            return PlainTextResponse("Other sites have no access.\n", 403)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("Only GET and POST are supported.\n", 405)
        if scope["method"] == "POST" and (refusal := self._no_order(headers)) is not None:
            return refusal
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if tokens := [value for key, value in query if key == "token"]:
            return self._enter(scope["path"], query) if self._known(tokens[0]) else PlainTextResponse(_LOCKED, 403)
        cookie = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        return None if _same(cookie, self.token) else PlainTextResponse(_LOCKED, 403)

    def _no_order(self, headers: Headers) -> Response | None:
        """Return the refusal of a POST that one of our own scripts did not make; None: one did.

        Forms and scripts of other sites, and of other servers on this machine, have another `Origin`; and forms cannot
        send JSON.
        """
        if headers.get("origin", "").lower() not in {f"http://{host}" for host in self._hosts}:
            return PlainTextResponse("Only our own pages may change anything.\n", 403)
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return PlainTextResponse("A POST must have application/json.\n", 415)
        return None

    def _known(self, token: str) -> bool:
        for code in [each for each in self._codes if _same(each, token)]:
            self._codes.remove(code)
            return True
        return _same(token, self.token)

    def _enter(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Give the browser its cookie, and let it ask again without the token, which no history is to keep."""
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        # A path that begins with two slashes would be another host.
        answer = RedirectResponse("/" + path.lstrip("/") + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(self._cookie, self.token, httponly=True, samesite="strict")
        return answer


def _same(one: str, other: str) -> bool:
    """Compare secrets in constant time."""
    return secrets.compare_digest(one.encode(), other.encode())
