"""Access to the pages: every route refuses requests that are not of the user's own browser and our own pages."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.routing import Route
from tests.support.pages import PORT, Browser

from carrypost import emu
from carrypost.web.server import HEADERS

_SCENE = """
duration_s = 60
[contacts]
file = "contacts.csv"
[[workload]]
kind = "broadcast"
first_s = 5
period_s = 60
lifetime_s = 50
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    folder = tmp_path_factory.mktemp("access")
    (folder / "contacts.csv").write_text("a,b,start,end\na,b,10,40\n")
    emu.run(emu.Scenario.parse(_SCENE, folder), out=folder / "one.parquet")
    return Browser(folder / "one.parquet")


def addresses(browser: Browser) -> list[str]:
    """Return the address of every route, static files included, and one that there is not."""
    run = next(iter(browser.runs)).id
    routes = [route.path for route in browser.app.asgi.routes if isinstance(route, Route)]
    assert len(routes) >= 9
    return [path.replace("{id}", run) for path in routes] + ["/static/vendor/vendor.json", "/none", "/static/../app.py"]


@pytest.mark.parametrize(
    "headers",
    [
        {"cookie": None},
        {"cookie": f"carrypost-{PORT}=guess"},
        {"cookie": "other=1"},
        {"host": "evil.example:7007"},
        {"host": "127.0.0.1"},
        {"host": "127.0.0.1:7008"},
        {"host": None},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_every_route_is_refused_to_strangers(browser: Browser, headers: dict[str, str | None]) -> None:
    for path in addresses(browser):
        answer = browser.get(path, headers)
        assert answer.status in {403, 421}, path
        assert browser.access.token not in answer.body.decode()
        assert answer.headers.items() >= {key.lower(): value for key, value in HEADERS.items()}.items()


def test_nothing_can_be_posted(browser: Browser) -> None:
    ours: dict[str, str | None] = {"origin": f"http://127.0.0.1:{PORT}", "content-type": "application/json"}
    for path in addresses(browser):
        assert browser.get(path, ours, method="POST").status in {404, 405}
        assert browser.get(path, ours, method="PUT").status == 405
        for origin in (None, "null", "http://127.0.0.1:9", "https://127.0.0.1:7007", "http://evil.example"):
            assert browser.get(path, ours | {"origin": origin}, method="POST").status == 403
        for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            assert browser.get(path, ours | {"content-type": kind}, method="POST").status == 415


def test_every_answer_has_the_headers_and_no_answer_the_token(browser: Browser) -> None:
    for path in addresses(browser):
        answer = browser.get(path, {"sec-fetch-site": "same-origin"})
        assert answer.status in {200, 303, 400, 404}, (path, answer)
        assert browser.access.token not in answer.body.decode("latin-1")
        assert answer.headers.items() >= {key.lower(): value for key, value in HEADERS.items()}.items()


def test_the_token_becomes_a_cookie_on_any_page_and_leaves_the_address(browser: Browser) -> None:
    asked = f"/replay/1?t=5&token={browser.access.token}&node=a"
    answer = browser.get(asked, {"cookie": None})
    assert (answer.status, answer.headers["location"]) == (303, "/replay/1?t=5&node=a")
    name, _, rest = answer.headers["set-cookie"].partition("=")
    assert name == f"carrypost-{PORT}"
    assert rest.startswith(browser.access.token)
    assert {"httponly", "samesite=strict"} <= {part.strip().lower() for part in rest.split(";")}
    assert browser.get("/?token=guess").status == 403


def test_a_code_for_one_use_is_not_the_token_and_works_once(browser: Browser) -> None:
    code = parse_qs(urlsplit(browser.access.url_once()).query)["token"][0]
    assert code != browser.access.token
    assert [browser.get(f"/?token={code}", {"cookie": None}).status for _ in range(2)] == [303, 403]


def test_a_redirection_stays_here(browser: Browser) -> None:
    for path in ("//evil.example/", "///evil.example", "/\\evil.example"):
        answer = browser.get(f"{path}?token={browser.access.token}", {"cookie": None})
        assert urlsplit(answer.headers["location"]).netloc == ""
        assert not answer.headers["location"].startswith(("//", "/\\"))


def test_only_the_files_of_pages_are_served(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    for path in (
        "/static/../access.py",
        "/static/%2e%2e/access.py",
        "/static//etc/passwd",
        f"/static/{tmp_path}/secret",
    ):
        assert browser.get(path).status == 404
