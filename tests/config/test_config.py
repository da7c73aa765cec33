"""Settings and limits: the values that they accept, and the errors about others."""

from __future__ import annotations

import dataclasses
import math

import pytest

from carrypost.config import UNBOUNDED, Limits, Settings, differences, parse
from carrypost.config.document import Document
from carrypost.config.rules import Fields, changed, table, text, texts_or, whole, written
from carrypost.errors import ConfigError

A_SIZE = 'must be a size from 576 to 65,507 bytes (such as 4096, 64KiB or 1.5MB), or "interface"'

WRONG_TEXTS = [
    ("mtu_byts = 1200", "mtu_byts is not a setting; did you mean mtu_bytes?"),
    ("[limits]\nframe_max = 3", "limits.frame_max is not a setting; did you mean limits.frames_max?"),
    ("frames_max = 3", "frames_max is not a setting; did you mean limits.frames_max?"),
    ("zzz = 3", "zzz is not a setting"),
    ("[limit]\nframes_max = 3", "limit is not a setting; did you mean limits?"),
    ("mtu_bytes = 575", f"mtu_bytes {A_SIZE}, not 575"),
    ("mtu_bytes = 65508", f"mtu_bytes {A_SIZE}, not 65508"),
    ("mtu_bytes = 1200.0", f"mtu_bytes {A_SIZE}, not 1200.0"),
    ('mtu_bytes = "1200"', f"mtu_bytes {A_SIZE}, not '1200'"),
    ("horizon_hops = true", "horizon_hops must be a whole number from 1 to 8, not True"),
    ("horizon_hops = 9", "horizon_hops must be a whole number from 1 to 8, not 9"),
    ("announce_s_min = false", "announce_s_min must be a number from 0.01 to 3,600.0, not False"),
    ("announce_s_max = nan", "announce_s_max must be a number from 0.01 to 3,600.0, not nan"),
    ("skew_s_max = inf", "skew_s_max must be a number from 0.0 to 31,536,000.0, not inf"),
    ("lifetime_s_max = 0", "lifetime_s_max must be a number from 0.001"),
    ('lifetime_s_max = "never"', "or \"none\", not 'never'"),
    ("paper_mode = 1", "paper_mode must be true or false, not 1"),
    ('security = "on"', 'security must be "signed" or "off", not \'on\''),
    ("altruistic = 1", "altruistic must be true, false or a list of destination patterns"),
    ('altruistic = "news.*"', "altruistic must be true, false or a list of destination patterns"),
    ('altruistic = ["news.*", ""]', "altruistic must be true, false or a list of destination patterns"),
    ("limits = 3", "limits must be a table, not 3"),
    ("[limits]\nframes_max = true", "limits.frames_max must be a whole number from 1 to 65,536, not True"),
    ("[limits]\nshare_author = 1.5", "limits.share_author must be a number from 0.001 to 1.0, not 1.5"),
    ("announce_s_min = 7", "announce_s_min must be at most announce_s_max (5.0), not 7.0"),
    ("[limits]\ndatagram_bytes_max = 1000", "mtu_bytes must be at most limits.datagram_bytes_max (1,000)"),
    ("[limits]\nprofile_bytes_max = 300000", "limits.descriptor_buffer_bytes_max must hold the largest"),
    ("mtu_bytes =", "the settings cannot be read as TOML"),
]

VARIABLES: list[tuple[str, str, object]] = [
    ("MTU_BYTES", "1_400", 1400),
    ("MTU_BYTES", "interface", None),
    ("MTU_BYTES", "1.4 kB", 1400),
    ("CACHE_BYTES_MAX", "256MB", 256_000_000),
    ("ANNOUNCE_S_MAX", "7", 7.0),
    ("PAPER_MODE", "True", True),
    ("PAPER_MODE", "off", False),
    ("SECURITY", "OFF", "off"),
    ("LIFETIME_S_MAX", "none", None),
    ("LIFETIME_S_DEFAULT", " 60.5 ", 60.5),
    ("ALTRUISTIC", "yes", True),
    ("ALTRUISTIC", "a{1,2}", ("a{1,2}",)),
    ("ALTRUISTIC", '["news.*", "sms"]', ("news.*", "sms")),
]

SIZES = [
    ("256MB", 256_000_000), ("256 MiB", 256 << 20), ("1.5GB", 1_500_000_000), ("0.5KiB", 512), ("12kB", 12_000),
    ("12KB", 12_000), ("12kb", 12_000), ("2TiB", 2 << 40), ("9B", 9),
]  # fmt: skip

WRONG_SIZES = ["256", "256M", "8Mb", "1.2B", "-1MB", "MB", "1e3MB", "1,000kB", "", "٣MB"]

WRONG_VARIABLES = [
    ("MTU_BYTE", "1400", "CARRYPOST_MTU_BYTE is not a setting; did you mean CARRYPOST_MTU_BYTES?"),
    ("MTU_BYTES", "big", f"CARRYPOST_MTU_BYTES {A_SIZE}, not 'big'"),
    ("MTU_BYTES", "100", f"CARRYPOST_MTU_BYTES {A_SIZE}, not '100'"),
    ("COALESCE_S", "nan", "CARRYPOST_COALESCE_S must be a number from 0.0 to 60.0, not 'nan'"),
    ("PAPER_MODE", "maybe", "CARRYPOST_PAPER_MODE must be true or false, not 'maybe'"),
    ("ALTRUISTIC", "[1", "CARRYPOST_ALTRUISTIC must be true, false or a list"),
    ("LIMITS", "{}", "CARRYPOST_LIMITS is not a setting"),
    (
        "LIMITS_FRAMES_MAX",
        "0",
        "CARRYPOST_LIMITS_FRAMES_MAX must be a whole number from 1 to 65,536, not '0'",
    ),
]


def test_the_defaults_are_those_of_a_real_node() -> None:
    settings = parse()
    assert settings == Settings()
    assert settings.security == "signed"
    assert (settings.lifetime_s_default, settings.lifetime_s_max) == (86_400, 30 * 86_400)
    assert (settings.altruistic, settings.horizon_hops) == (False, 1)
    assert (settings.mtu_bytes, settings.datagram_bytes) == (None, 1200)
    assert settings.limits == Limits()


def test_emulation_has_security_off_and_no_lifetimes() -> None:
    settings = Settings.emulated(mtu_bytes=1400)
    assert (settings.security, settings.lifetime_s_default, settings.lifetime_s_max) == ("off", None, None)
    assert settings.mtu_bytes == 1400
    assert Settings.emulated(lifetime_s_max=60).lifetime_s_max == 60


def test_every_field_has_a_range_that_its_default_is_in() -> None:
    for value in (Settings(), Limits()):
        names = [field.name for field in dataclasses.fields(value)]
        assert value.replace(**{name: getattr(value, name) for name in names}) == value


def test_every_limit_is_a_number_and_refuses_what_is_none() -> None:
    for field in dataclasses.fields(Limits):
        for wrong in ("7", None, True, math.nan, -1):
            with pytest.raises(ConfigError, match=rf"^limits\.{field.name} must be a"):
                Limits().replace(**{field.name: wrong})


def test_toml_sets_fields_and_limits() -> None:
    settings = parse(
        """
        altruistic = ["news.*"]
        announce_s_max = 10
        lifetime_s_default = "none"
        security = "off"
        [limits]
        frames_max = 7
        """
    )
    assert settings.altruistic == ("news.*",)
    assert settings.announce_s_max == 10.0
    assert isinstance(settings.announce_s_max, float)
    assert settings.lifetime_s_default is None
    assert settings.limits == Limits(frames_max=7)


@pytest.mark.parametrize(("text", "message"), WRONG_TEXTS)
def test_a_wrong_text_is_refused_with_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse(text)
    assert message in str(refusal.value)


@pytest.mark.parametrize(("name", "text", "value"), VARIABLES)
def test_a_variable_sets_a_field(name: str, text: str, value: object) -> None:
    assert getattr(parse("", {f"CARRYPOST_{name}": text}), name.lower()) == value


@pytest.mark.parametrize(("name", "text", "message"), WRONG_VARIABLES)
def test_a_wrong_variable_is_refused_by_its_own_name(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse("", {f"CARRYPOST_{name}": text})
    assert message in str(refusal.value)


@pytest.mark.parametrize(("text", "size"), SIZES)
def test_a_size_may_have_a_unit_in_a_file_and_elsewhere(text: str, size: int) -> None:
    assert parse(f'cache_bytes_max = "{text}"').cache_bytes_max == size
    assert parse(cache_bytes_max=text).cache_bytes_max == size


@pytest.mark.parametrize("text", WRONG_SIZES)
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"cache_bytes_max must be a size from 1 to .* 64KiB or 1.5MB"):
        parse(cache_bytes_max=text)


def test_variables_of_others_are_ignored() -> None:
    assert parse("", {"PATH": "x", "MTU_BYTES": "1"}) == Settings()


def test_keywords_win_over_variables_and_those_over_text() -> None:
    text = """
        mtu_bytes = 600
        horizon_hops = 2
        digest_every = 3
        limits = { frames_max = 1, heard_max = 1, seen_max = 1 }
    """
    environment = {
        "CARRYPOST_HORIZON_HOPS": "4",
        "CARRYPOST_DIGEST_EVERY": "4",
        "CARRYPOST_LIMITS_HEARD_MAX": "2",
        "CARRYPOST_LIMITS_SEEN_MAX": "2",
    }
    settings = parse(text, environment, digest_every=5, limits={"seen_max": 3})
    assert (settings.mtu_bytes, settings.horizon_hops, settings.digest_every) == (600, 4, 5)
    assert settings.limits == Limits(frames_max=1, heard_max=2, seen_max=3)


def test_only_the_outcome_of_all_sources_has_to_be_consistent() -> None:
    assert parse("announce_s_min = 7", announce_s_max=9).announce_s_min == 7
    assert parse("mtu_bytes = 2000", {"CARRYPOST_LIMITS_DATAGRAM_BYTES_MAX": "2000"}).mtu_bytes == 2000


def test_whole_limits_as_a_keyword_replace_all_others() -> None:
    settings = parse("[limits]\nframes_max = 1", limits=Limits(heard_max=9))
    assert settings.limits == Limits(heard_max=9)


def test_replace_changes_some_limits_and_keeps_the_others() -> None:
    settings = Settings(limits=Limits(frames_max=7)).replace(limits={"heard_max": 9}, compress=False)
    assert settings == Settings(limits=Limits(frames_max=7, heard_max=9), compress=False)


def test_replace_makes_the_same_checks() -> None:
    with pytest.raises(ConfigError, match="did you mean mtu_bytes"):
        Settings().replace(mtu=1400)
    with pytest.raises(ConfigError, match="horizon_hops must be"):
        Settings.emulated(horizon_hops=0)
    with pytest.raises(ConfigError, match=r"limits\.frames_max must be"):
        Settings().replace(limits={"frames_max": 0})


def test_a_limit_can_be_lifted() -> None:
    assert Settings.emulated(cache_messages_max=UNBOUNDED).cache_messages_max == UNBOUNDED


def test_settings_can_be_shared_and_compared() -> None:
    assert hash(Settings(altruistic=("a",))) == hash(Settings(altruistic=("a",)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().mtu_bytes = 3  # type: ignore[misc]


@table("overlay")
class Overlay:
    """An example of a later table."""

    homes: int = whole(3, 1, 9)
    relays: tuple[str, ...] | None = texts_or("any", "a list of relays")


@table()
class Whole:
    """Settings that have such a table."""

    name: str = text("", "a name")
    overlay: Overlay = Overlay()


def test_a_table_in_settings_is_known_by_its_name_wherever_settings_come_from() -> None:
    fields = Fields({"": Whole})
    told = Document("name = 'x'\n[overlay]\nhomes = 4", "it").fields(fields)
    variables = fields.read_environment({"CARRYPOST_OVERLAY_RELAYS": "a, b"})
    keywords = fields.check({"overlay.homes": 5})
    made = changed(Whole(), told | variables | keywords)
    assert made == Whole(name="x", overlay=Overlay(homes=5, relays=("a", "b")))
    assert differences(made, Whole()) == {"name": "x", "overlay.homes": "5", "overlay.relays": "['a', 'b']"}
    assert written(Whole()) == {"name": "", "overlay": {"homes": 3, "relays": "any"}}
    assert changed(made, fields.check(written(Whole()))) == Whole()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[overlay]\nhome = 1", "it, line 2: overlay.home is not a setting; did you mean overlay.homes?"),
        ("[overlays]\nhomes = 1", "it, line 1: overlays is not a setting; did you mean overlay?"),
        ("[overlay]\nhomes = 10", "it, line 2: overlay.homes must be a whole number from 1 to 9, not 10"),
        ("overlay = 1", "it, line 1: overlay must be a table, not 1"),
    ],
)
def test_mistakes_in_a_table_in_settings_are_told_by_its_name(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Document(text, "it").fields(Fields({"": Whole}))
    assert str(refusal.value) == told


def test_a_value_of_another_class_is_no_table_in_settings() -> None:
    with pytest.raises(ConfigError, match="limits must be Limits here"):
        Settings(limits=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"overlay\.homes must be a whole number from 1 to 9, not 0"):
        Overlay(homes=0)
