"""The pages of `docs/results`: made by the present code, or by code that behaves alike."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import carrypost
from carrypost.lab.campaign import reproduce
from carrypost.lab.report.origins import made_by
from tools import results

PAGES = {path.stem for path in results.RESULTS.glob("*.html")}
CHECKED = {path.stem for path in results.RESULTS.glob("*.json")}


def test_every_experiment_has_a_page_and_a_check_that_can_be_made() -> None:
    assert PAGES == CHECKED == set(reproduce.RECIPES) == set(results.CHECKS)
    counts = {name: len(reproduce.seeds_of(seeds)) for name, seeds in results.SEEDS.items()}
    fewer = {name: count for name, count in counts.items() if count < 10}
    assert fewer == dict.fromkeys(results.DEAR, 5) | dict.fromkeys(results.REPLAYED, 1)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--help"], "usage"),
        (["overlai"], "did you mean overlay?"),
        (["bus", "--seeds", "5-1"], "must be whole numbers such as 1, 1,2,5 or 1-10"),
    ],
)
def test_the_tool_explains_itself_and_refuses_what_it_does_not_know(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        results.main(words)
    assert shown in "".join(capsys.readouterr())


@pytest.mark.parametrize(("words", "seeds"), [([], "1-5"), (["--seeds", "1-3"], "1-3")])
def test_a_page_is_made_with_its_own_seeds_or_those_that_are_given(
    words: list[str], seeds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(order: list[str], **_: bool) -> subprocess.CompletedProcess[bytes]:
        commands.append(order)
        return subprocess.CompletedProcess(order, 3)

    monkeypatch.setattr(subprocess, "run", run)
    assert results.main(["ostermalm", *words]) == 3
    assert [order[4:7] for order in commands] == [["ostermalm", "--seeds", seeds]]


def outdated() -> list[str]:
    """Return the pages that have other numbers than the code gives now."""
    found = []
    for name in sorted(path.stem for path in results.RESULTS.glob("*.json")):
        stored, page = results.stored(name), (results.RESULTS / f"{name}.html").read_text(encoding="utf-8")
        same = (stored["settings"], stored["duration_s"], stored["rows"]) == (
            *results.CHECKS[name],
            results.checked(name),
        )
        found += [] if same and stored["made_by"].removesuffix(" with changes") in page else [name]
    return found


def test_pages_have_the_numbers_that_the_code_gives_now() -> None:
    assert outdated() == [], "the code behaves in another way: run `make results` for these pages"


def test_a_check_is_made_with_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    (tmp_path / "report.html").write_text(f"a page by {made_by()}\n", encoding="utf-8")
    results.put("floodwatch", tmp_path / "report.html")
    assert (tmp_path / "floodwatch.html").read_text(encoding="utf-8").startswith("a page by carrypost")
    assert outdated() == []
    check = results.check_file("floodwatch")
    check.write_text(check.read_text(encoding="utf-8").replace('"receive": ', '"receive": 1'), encoding="utf-8")
    assert outdated() == ["floodwatch"]


def test_pages_name_their_commit_and_where_there_is_no_git_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    source = tmp_path / "src" / "carrypost" / "__init__.py"
    source.parent.mkdir(parents=True)
    source.touch()
    monkeypatch.setattr(carrypost, "__file__", str(source))
    assert made_by() == f"carrypost {carrypost.__version__}"
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)  # noqa: S603 - in a folder of the test
    commit = subprocess.check_output([*git, "rev-parse", "--short=12", "HEAD"], text=True).strip()  # noqa: S603
    assert made_by() == f"carrypost {carrypost.__version__}, commit {commit}"
    source.write_text("changed", encoding="utf-8")
    assert made_by().endswith(f"{commit} with changes")
