"""campaign.toml: its meaning, and every mistake reported before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.campaigns import THREE, TWO_SETTINGS, campaign, three

from carrypost.cli.app import run
from carrypost.emu.scenario import Scenario
from carrypost.errors import LocalError
from carrypost.lab.campaign.grid import load


def test_runs_are_scenarios_by_settings_by_seeds_in_order(tmp_path: Path) -> None:
    three(tmp_path)
    three(tmp_path, THREE.replace('"three"', '"other"'), "other.toml")
    path = campaign(tmp_path, TWO_SETTINGS, scenarios='["scenarios/three.toml", "scenarios/other.toml"]')
    assert [each.name for each in load(path).runs] == [
        f"{scenario}/{settings}/{seed}"
        for scenario in ("three", "other")
        for settings in ("usual", "30 s")
        for seed in (1, 2)
    ]


def test_without_settings_there_is_one_that_changes_nothing(tmp_path: Path) -> None:
    three(tmp_path)
    (run,) = load(campaign(tmp_path, seeds="[1]")).runs
    assert (run.name, dict(run.overrides)) == ("three/default/1", {})


@pytest.mark.parametrize(
    ("seeds", "meant"),
    [("{first = 3, last = 5}", [3, 4, 5]), ("{last = 2}", [1, 2]), ('["7", "x y", -1]', [7, "x y", -1])],
)
def test_seeds_are_numbers_texts_or_a_span(tmp_path: Path, seeds: str, meant: list[int | str]) -> None:
    three(tmp_path)
    assert [each.seed for each in load(campaign(tmp_path, seeds=seeds)).runs] == meant


def test_keys_with_and_without_quotes_mean_the_same(tmp_path: Path) -> None:
    three(tmp_path)
    quoted = '[[settings]]\nname = "a"\nset = {"workload.1.lifetime_s" = 30, "radio.loss" = 0.5}'
    plain = '[[settings]]\nname = "a"\n[settings.set]\nworkload.1.lifetime_s = 30\nradio.loss = 0.5'
    prints = [load(campaign(tmp_path, text)).runs[0].fingerprint for text in (quoted, plain)]
    assert prints[0] == prints[1]


def test_names_of_files_are_safe_and_different(tmp_path: Path) -> None:
    three(tmp_path)
    names = ["a", "A", "a_", "a b", "ä", "..", "-", "a" * 300, "CON", "a:b*?"]
    tables = [f'[[settings]]\nname = "{name}"' for name in names]
    stems = [each.stem for each in load(campaign(tmp_path, *tables, seeds="[1]")).runs]
    assert len({stem.casefold() for stem in stems}) == len(names)
    assert all(stem.isascii() and len(stem) < 100 and not stem.startswith((".", "_", "-")) for stem in stems)
    assert not any(set(stem) & set(' /\\:*?"<>|') for stem in stems)


def test_runs_whose_long_names_have_nearly_the_same_hash_have_different_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(tmp_path, THREE.replace('"three"', f'"{"x" * 90}"'))
    path = campaign(tmp_path, seeds="[13601, 33921]")  # The first 32 bits of both are the same.
    first, second = load(path).runs
    assert first.stem != second.stem
    monkeypatch.setattr("carrypost.lab.campaign.grid._DIGEST", 8)
    with pytest.raises(LocalError, match=r"/default/13601 and x*/default/33921 would both be named"):
        load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: three(folder, THREE.replace("period_s = 20", "period_s = 21")),
        lambda folder: (folder / "shared" / "contacts.csv").write_text("a,b,start,end\na,b,10,31\n", encoding="utf-8"),
        lambda folder: (folder / "scenarios" / "nodes.csv").write_text("node,join\na,0\nb,0\nc,0\n", encoding="utf-8"),
    ],
)
def test_a_fingerprint_changes_with_the_scenario_and_every_file_it_names(tmp_path: Path, change: object) -> None:
    three(tmp_path)
    path = campaign(tmp_path)
    before = [each.fingerprint for each in load(path).runs]
    assert before == [each.fingerprint for each in load(path).runs]
    assert len(set(before)) == 2  # By seed.
    assert callable(change)
    change(tmp_path)
    assert not set(before) & {each.fingerprint for each in load(path).runs}


def test_a_fingerprint_changes_with_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three(tmp_path)
    path = campaign(tmp_path, seeds="[1]")
    before = load(path).runs[0].fingerprint
    monkeypatch.setattr("carrypost.__version__", "99")
    assert load(path).runs[0].fingerprint != before


def test_what_is_played_is_what_the_command_line_would_play(tmp_path: Path) -> None:
    path = three(tmp_path)
    made = load(campaign(tmp_path, TWO_SETTINGS)).runs[2]
    by_hand = Scenario.load(path, ["workload.1.lifetime_s=30", "radio.loss=0.2"])
    assert Scenario.parse(made.text, overrides=made.overrides, file=made.file).text == by_hand.text


_GOOD = 'scenarios = ["scenarios/three.toml"]\n'
BAD = [
    ("scenarios = [", "campaign.toml cannot be read as TOML"),
    ("", "campaign.toml: scenarios must be a list of one or more scenario files"),
    ("scenarios = []\nseeds = [1]", "campaign.toml, line 1: scenarios must be a list of one or more scenario files"),
    ('scenarios = "three.toml"\nseeds = [1]', "line 1: scenarios must be a list of one or more scenario files"),
    ("\nscenarois = []", "campaign.toml, line 2: scenarois is not a key of a campaign; did you mean scenarios?"),
    ("colour = 1", "line 1: colour is not a key of a campaign; there are scenarios, seeds, settings"),
    ('scenarios = ["scenarios/three.toml", "scenarios/three.toml"]\nseeds = [1]', "names scenarios/three.toml twice"),
    ('scenarios = [\n  "scenarios/tree.toml",\n]\nseeds = [1]', "line 2: scenarios: the scenario "),
    ('scenarios = ["scenarios/tree.toml"]\nseeds = [1]', "cannot be read: No such file or directory"),
    (f"{_GOOD}", "campaign.toml: seeds must be a list of one or more whole numbers or texts"),
    (f"{_GOOD}seeds = []", "campaign.toml, line 2: seeds must be a list of one or more"),
    (f"{_GOOD}seeds = [1, 2.5]", "line 2: a seed must be a whole number or text, not 2.5"),
    (f"{_GOOD}seeds = [true]", "line 2: a seed must be a whole number or text, not True"),
    (f'{_GOOD}seeds = [1, "1"]', "line 2: seeds has 1 twice"),
    (f'{_GOOD}seeds = ["a/b"]', "line 2: a seed must be printable text without /, not 'a/b'"),
    (f"{_GOOD}seeds = {{first = 1, lsat = 2}}", "line 2: lsat is not a key of seeds; did you mean last?"),
    (f"{_GOOD}seeds = {{first = 3, last = 2}}", "line 2: first and last of seeds must be whole numbers"),
    (f"{_GOOD}seeds = {{first = 3}}", "line 2: first and last of seeds must be whole numbers"),
    (f"{_GOOD}seeds = {{last = 10000000}}", "line 2: there are 10,000,000 seeds; the maximum is 1,000,000 runs"),
    (f"{_GOOD}seeds = [1]\nsettings = []", "line 3: settings must not be empty; leave it out"),
    (f'{_GOOD}seeds = [1]\n[settings]\nname = "a"', "line 3: settings must be a list of tables, each written"),
    (f"{_GOOD}seeds = [1]\n\n[[settings]]\nset = {{}}", "line 4: settings have no name"),
    (f"{_GOOD}seeds = [1]\n[[settings]]\nname = 5", "line 3: the name of settings must be text, not 5"),
    (f'{_GOOD}seeds = [1]\n[[settings]]\nname = "1/2"', "line 3: the name of settings must be printable"),
    (f'{_GOOD}seeds = [1]\n[[settings]]\nname = "a"\nstet = {{}}', "line 5: stet is not a key of settings; did you"),
    (f'{_GOOD}seeds = [1]\n[[settings]]\nname = "a"\nset = 5', "line 5: set must be a table of keys of the scenario"),
    (f'{_GOOD}seeds = [1]\n[[settings]]\nname = "a"\n[[settings]]\nname = "a"', 'line 5: two settings are called "a"'),
    (
        f'{_GOOD}seeds = [1]\n[[settings]]\nname = "a"\nscenarios = ["scenarios/tree.toml"]',
        "line 5: scenarios must be a list of scenarios of the campaign, not ['scenarios/tree.toml']; did you mean",
    ),
    (f'{_GOOD}seeds = [1]\n[[settings]]\nname = "a"\nscenarios = 5', "line 5: scenarios must be a list"),
    (
        ('scenarios = ["scenarios/three.toml", "scenarios/again.toml"]\nseeds = [1]\n'
        '[[settings]]\nname = "a"\nscenarios = ["scenarios/again.toml"]'),
        "line 1: no settings apply to the scenario scenarios/three.toml",
    ),
    (
        f'{_GOOD}seeds = [1]\n[[settings]]\nname = "a"\nset = {{"workload.1.lifetim_s" = 5}}',
        'campaign.toml, line 3: settings "a": three.toml with these settings: workload.1.lifetim_s is not',
    ),
    (
        f'{_GOOD}seeds = [1]\n[[settings]]\nname = "a"\nset = {{"workload.7.lifetime_s" = 5}}',
        'line 3: settings "a": three.toml: workload.7.lifetime_s: workload is a list of 2',
    ),
    (
        f'{_GOOD}seeds = [1]\n[[settings]]\nname = "a"\nset = {{"contacts.file" = "none.csv"}}',
        'line 3: settings "a": three.toml: contacts.file names ',
    ),
    ('scenarios = ["scenarios/bad.toml"]\nseeds = [1]', "line 1: bad.toml, line 2: duration is not a key of a"),
    ('scenarios = ["scenarios/lost.toml"]\nseeds = [1]', "none.csv, and there is no such file"),
    (
        'scenarios = ["scenarios/three.toml", "scenarios/again.toml"]\nseeds = [1]',
        "line 1: two scenarios have runs named three/default/1: give one of them another `name`",
    ),
    ('scenarios = ["scenarios/slash.toml"]\nseeds = [1]', "scenarios/slash.toml must be printable"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), BAD)
def test_mistakes_are_told_with_file_and_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    three(tmp_path)
    three(tmp_path, THREE, "again.toml")
    three(tmp_path, 'name = "bad"\nduration = 5', "bad.toml")
    three(tmp_path, 'duration_s = 5\n[mobility]\nmodel = "trace"\nfile = "none.csv"', "lost.toml")
    three(tmp_path, THREE.replace('"three"', '"a/b"'), "slash.toml")
    path = tmp_path / "campaign.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LocalError) as caught:
        load(path)
    assert told in str(caught.value)
    assert "--set" not in str(caught.value)
    assert run(["lab", "campaign", str(path), "--out", str(tmp_path / "out")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_campaign_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot be read: No such file"):
        load(tmp_path / "campaign.toml")


def test_jobs_are_for_masters_that_heed_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["lab", "campaign", str(campaign(tmp_path)), "--out", str(tmp_path / "out"), "--jobs", "2"]
    assert run([*arguments, "--master", "yarn"]) == 2
    assert "--jobs requires a local or spark:// master" in capsys.readouterr().err
