"""Contacts of colleagues with phones, drawn without positions: rooms of people, and radio between phones in them.

This stands for the campus experiment of JOMS (§3.3), of which the paper gives sums alone. People have places: offices
in a row, meetings, breaks and errands, and flats that some share in the evening. Two phones are in one room, near each
other (in adjacent offices, or one in the corridor), or apart, and their radio alternates between hearing and not
hearing, at rates of the room's class. A few short contacts work one way.

Every person, pair and day has a stream of chance of its own, so a further person or day changes nothing for the others,
except for common events, for which all are drawn together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from carrypost.chance import stream
from carrypost.config.rules import number, numbers, table, texts, whole
from carrypost.errors import ConfigError
from carrypost.mobility import check_order
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import Contact, DrawnContacts, Presence

_HOUR_S, _MINUTE_S, _DAY_S = 3_600.0, 60.0, 86_400.0
_TRIES = 50
"""Number of times for which a meeting is drawn until it overlaps no other common event; then it is left out."""
_APPROACH_MIN_S = 120.0
"""Length of a stay in a room from which on the walk to it counts."""
_HOURS_MAX = 24.0
_AWAY, _OFFICE, _CORRIDOR, _FLAT, _ROOM = "away", "office", "corridor", "flat", "room"
_COFFEE, _LUNCH, _MEETING = "coffee", "lunch", "meeting"
_SAME, _NEAR = "same", "near"


class _Place(NamedTuple):
    """A room; two people who are away are apart."""

    kind: str
    number: int = 0

    @property
    def on_campus(self) -> bool:
        return self.kind not in {_AWAY, _FLAT}


class _Stretch(NamedTuple):
    """A time of a day that a person spends in one place, in seconds since the morning."""

    start_s: float
    end_s: float
    place: _Place


class _Event(NamedTuple):
    """A common event, and the stretches of those who take part or are out meanwhile, by person."""

    start_s: float
    end_s: float
    stretches: Mapping[str, _Stretch]


class _Day(NamedTuple):
    """A person's day: all of it up to the moment at which the phone is switched off."""

    line: Sequence[_Stretch]
    end_s: float


@table("contacts")
class Campus:
    """Colleagues with phones in offices, at meetings, in breaks and at home; by default those of JOMS, §3.3."""

    people: int = whole(8, 2, 1_000)
    """Number of people, p1 and so on."""
    office_people: int = whole(2, 1, 1_000)
    """People in each office; offices are in a row."""
    day_h: float = number(16.0, 1.0, _HOURS_MAX)
    """Length of a day. Phones are off between days, which begin every 24 h."""
    together_h: float = number(2.0, 0.0, _HOURS_MAX)
    """Time that all spend in one room at the begin of the first day."""
    arrival_mean_h: float = number(1.0, 0.0, _HOURS_MAX)
    """Mean time of arrival on later days, since the begin of the day."""
    arrival_sd_h: float = number(0.5, 0.0, _HOURS_MAX)
    """Standard deviation of the time of arrival."""
    departure_mean_h: float = number(12.0, 0.0, _HOURS_MAX)
    """Mean time of departure."""
    departure_sd_h: float = number(1.0, 0.0, _HOURS_MAX)
    """Standard deviation of the time of departure."""
    stay_min_h: float = number(3.0, 0.0, _HOURS_MAX)
    """Shortest stay on the campus in a day."""
    coffee_h: tuple[float, ...] = numbers((2.25, 7.75), 0.0, _HOURS_MAX)
    """Times of coffee breaks."""
    coffee_min: float = number(20.0, 1.0, 600.0)
    """Length of a coffee break in minutes."""
    lunch_h: float = number(4.0, 0.0, _HOURS_MAX)
    """Time of lunch, which lasts an hour. People who do not take part are out of range."""
    join: float = number(0.4, 0.0, 1.0)
    """Probability that a person takes part in a break or in lunch."""
    punctual_min: float = number(5.0, 0.0, 60.0)
    """Standard deviation of the times of breaks in minutes."""
    meetings: int = whole(2, 0, 20)
    """Meetings in a day, of an hour each."""
    meeting_people: int = whole(4, 2, 1_000)
    """People in a meeting, drawn anew for each."""
    meeting_first_h: float = number(1.7, 0.0, _HOURS_MAX)
    """Earliest begin of a meeting; on the first day not before `together_h`."""
    meeting_last_h: float = number(10.0, 0.0, _HOURS_MAX)
    """Latest begin of a meeting."""
    half_days: float = number(0.0625, 0.0, 1.0)
    """Probability that a person leaves the campus for half a day, of 3.5 to 6.5 h."""
    errands_per_h: float = number(0.35, 0.0, 60.0)
    """Rate at which people leave their office."""
    errand_h: float = number(0.4, 0.001, _HOURS_MAX)
    """Mean length of such an errand; the next event ends it."""
    visit: float = number(0.6, 0.0, 1.0)
    """Probability that an errand leads to another office, not out of range."""
    flats: tuple[str, ...] = texts("a list of pairs of people")
    """Pairs who share a flat, such as "p1 p4": in one room from half an hour after the later departure on, and in the
    morning."""
    off: float = number(0.03, 0.0, 1.0)
    """Probability that a phone is switched off during a day, until the next morning."""
    same_on_s: float = number(380.0, 1.0, 1e6)
    """Mean time for which phones in one room hear each other."""
    same_off_s: float = number(20.0, 1.0, 1e6)
    """Mean time for which phones in one room do not hear each other."""
    near_on_s: float = number(42.0, 1.0, 1e6)
    """Mean time for which phones that are near each other hear each other."""
    near_off_s: float = number(90.0, 1.0, 1e6)
    """Mean time for which phones that are near each other do not."""
    on_sigma: float = number(1.2, 0.01, 5.0)
    """Times of hearing are lognormal with this deviation of the logarithm, and last a second at least."""
    gap_min_s: float = number(15.0, 0.0, 1_000.0)
    """Shortest time between two contacts of a pair."""
    one_way: float = number(0.025, 0.0, 1.0)
    """Share of contacts that work one way, among those of less than a minute, which become shorter."""
    one_way_s: float = number(6.0, 0.001, 60.0)
    """Mean length of such a contact beyond a second."""
    patience_h: float = number(1.25, 0.0, _HOURS_MAX)
    """People are active, as the workload `random` understands it, from their first to their last moment on the campus
    of a day, but for absences that are longer than this."""

    def __post_init__(self) -> None:
        check_order(self, "gap_min_s", "same_off_s", "contacts")
        check_order(self, "gap_min_s", "near_off_s", "contacts")
        check_order(self, "meeting_first_h", "meeting_last_h", "contacts")
        if self.meetings and self.meeting_people > self.people:
            raise ConfigError(
                f"contacts.meeting_people must be at most {self.people}, which is people, not {self.meeting_people}"
            )
        names, known = [name for pair in self.flats for name in pair.split()], set(self._names)
        for pair in self.flats:
            if len(pair.split()) != 2 or not known.issuperset(pair.split()):  # noqa: PLR2004 - a pair
                raise ConfigError(f"contacts.flats must have pairs of people from p1 to p{self.people}, not {pair!r}")
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"contacts.flats must name each person once, and names {repeated!r} again")

    @property
    def _names(self) -> list[str]:
        return [f"p{place}" for place in range(1, self.people + 1)]

    def meet(self, seed: int | str, duration_us: int) -> DrawnContacts:
        """Return the contacts, presences and active times of all people, of every day that begins before the end."""
        found = DrawnContacts([], [], [])
        for day in range(math.ceil(duration_us / MICROSECONDS / _DAY_S)):
            common = self._common(stream(seed, "campus", day), first=day == 0)
            days = {name: self._day(stream(seed, "campus", day, name), name, common, day) for name in self._names}
            for name, of in days.items():
                found.presences.append(_presence(name, day, 0.0, of.end_s, duration_us))
                found.active.extend(
                    _presence(name, day, *span, duration_us)
                    for span in self._active(of)
                    if _us(day, span[0]) < min(_us(day, span[1]), duration_us)
                )
            links = [
                (a, b, *span)
                for a, b in combinations(self._names, 2)
                for span in self._heard(stream(seed, "campus", day, a, b), days[a], days[b])
            ]
            found.contacts.extend(self._one_way(stream(seed, "campus", day, "one way"), links, day))
        found.contacts.sort(key=lambda contact: (contact.start_us, contact.a, contact.b))
        return found

    # --- people in places ----------------------------------------------------------------------------------

    def _common(self, chance: random.Random, *, first: bool) -> list[_Event]:
        """Draw the breaks, lunches and meetings of a day."""
        late_s = self.punctual_min * _MINUTE_S
        events = []
        for kind, at_h, length_s in (
            *((_COFFEE, at_h, self.coffee_min * _MINUTE_S) for at_h in self.coffee_h), (_LUNCH, self.lunch_h, _HOUR_S),
        ):  # fmt: skip
            start_s = at_h * _HOUR_S + chance.gauss(0.0, late_s)
            stretches = {}
            for name in self._names:
                if chance.random() < self.join:
                    stretches[name] = _Stretch(start_s, start_s + length_s, _Place(kind))
                elif kind == _LUNCH:
                    leaves_s, returns_s = (
                        chance.gauss(at_h * _HOUR_S + after_s, late_s) for after_s in (0.0, length_s)
                    )
                    stretches[name] = _Stretch(leaves_s, returns_s, _Place(_AWAY))
            events.append(_Event(start_s, start_s + length_s, stretches))
        earliest_h = max(self.meeting_first_h, self.together_h) if first else self.meeting_first_h
        for _ in range(self.meetings):
            starts_s = (
                chance.uniform(earliest_h, max(earliest_h, self.meeting_last_h)) * _HOUR_S for _ in range(_TRIES)
            )
            free_s = (
                at_s for at_s in starts_s
                if all(at_s + _HOUR_S <= each.start_s or each.end_s <= at_s for each in events)
            )  # fmt: skip
            people = chance.sample(self._names, self.meeting_people)
            if (begin_s := next(free_s, None)) is not None:
                stretch = _Stretch(begin_s, begin_s + _HOUR_S, _Place(_MEETING))
                events.append(_Event(stretch.start_s, stretch.end_s, dict.fromkeys(people, stretch)))
        return events

    def _day(self, chance: random.Random, name: str, common: Iterable[_Event], day: int) -> _Day:
        """Draw a person's day."""
        day_s, first = self.day_h * _HOUR_S, day == 0
        arrival_s = 0.0 if first else max(0.0, chance.gauss(self.arrival_mean_h, self.arrival_sd_h)) * _HOUR_S
        departure_s = chance.gauss(self.departure_mean_h, self.departure_sd_h) * _HOUR_S
        departure_s = min(max(departure_s, arrival_s + self.stay_min_h * _HOUR_S), day_s)
        half_day = self._half_day(chance, arrival_s, departure_s, first=first)
        line = [_Stretch(0.0, day_s, _Place(_AWAY))]
        if (flat := next((place for place, pair in enumerate(self.flats) if name in pair.split()), None)) is not None:
            line = _overlaid(line, _Stretch(departure_s + _HOUR_S / 2, day_s, _Place(_FLAT, flat)))
            if not first:
                line = _overlaid(line, _Stretch(0.0, arrival_s - _HOUR_S / 2, _Place(_FLAT, flat)))
        office = _Place(_OFFICE, self._names.index(name) // self.office_people)
        line = _overlaid(line, _Stretch(arrival_s, departure_s, office))
        if first:
            line = _overlaid(line, _Stretch(0.0, min(self.together_h * _HOUR_S, departure_s), _Place(_ROOM)))
        for event in common:
            if (mine := event.stretches.get(name)) is None:
                continue
            mine = _Stretch(max(mine.start_s, arrival_s), min(mine.end_s, departure_s), mine.place)
            if half_day is None or mine.end_s <= half_day.start_s or half_day.end_s <= mine.start_s:
                line = _overlaid(line, mine)
        if half_day is not None:
            line = _overlaid(line, half_day)
        line = self._with_walks(chance, self._with_errands(chance, line, office))
        end_s = day_s
        if chance.random() < self.off:
            end_s = chance.uniform(min(self.stay_min_h * _HOUR_S, departure_s), departure_s)
            line = [each._replace(end_s=min(each.end_s, end_s)) for each in line if each.start_s < end_s]
        return _Day(line, end_s)

    def _half_day(self, chance: random.Random, arrival_s: float, departure_s: float, *, first: bool) -> _Stretch | None:
        """Draw the time that a person is off the campus for long; None: not on this day."""
        if chance.random() >= self.half_days:
            return None
        length_s = chance.uniform(3.5, 6.5) * _HOUR_S
        earliest_s = ((self.together_h if first else 0.0) + 0.5) * _HOUR_S + arrival_s
        latest_s = departure_s - _HOUR_S / 2 - length_s
        start_s = chance.uniform(earliest_s, max(earliest_s, latest_s))
        return _Stretch(start_s, min(start_s + length_s, departure_s), _Place(_AWAY))

    def _with_errands(self, chance: random.Random, line: Sequence[_Stretch], office: _Place) -> list[_Stretch]:
        """Return a day with errands from the office."""
        others = [_Place(_OFFICE, each) for each in range(math.ceil(self.people / self.office_people))]
        others.remove(office)
        found = list(line)
        for stretch in line if self.errands_per_h else ():
            at_s = stretch.start_s
            while stretch.place == office:
                at_s += chance.expovariate(self.errands_per_h) * _HOUR_S
                if at_s >= stretch.end_s:
                    break
                end_s = min(at_s + chance.expovariate(1 / self.errand_h) * _HOUR_S, stretch.end_s)
                visits = chance.random() < self.visit and others
                found = _overlaid(found, _Stretch(at_s, end_s, chance.choice(others) if visits else _Place(_AWAY)))
                at_s = end_s
        return found

    @staticmethod
    def _with_walks(chance: random.Random, line: Sequence[_Stretch]) -> list[_Stretch]:
        """Return a day with walks through the corridor to each new room on the campus."""
        found = list(line)
        for before, after in pairwise(line):
            new = after.place.on_campus and before.place != after.place
            if new and after.end_s - after.start_s > _APPROACH_MIN_S:
                walk_s = chance.uniform(30.0, 90.0)
                found = _overlaid(found, _Stretch(after.start_s, after.start_s + walk_s, _Place(_CORRIDOR)))
        return found

    def _active(self, day: _Day) -> Iterator[tuple[float, float]]:
        """Yield the spans of a day in which a person is active."""
        campus = [each for each in day.line if each.place.on_campus]
        for start_s, end_s, place in day.line if campus else ():
            inside = campus[0].start_s <= start_s < campus[-1].end_s
            if inside and (place.on_campus or end_s - start_s <= self.patience_h * _HOUR_S):
                yield start_s, end_s

    # --- radio of pairs ------------------------------------------------------------------------------------

    def _heard(self, chance: random.Random, one: _Day, two: _Day) -> list[tuple[float, float]]:
        """Draw the spans of a day in which the phones of a pair hear each other."""
        found: list[tuple[float, float]] = []
        for start_s, end_s, kind in _classes(one.line, two.line):
            on_s, off_s = (self.same_on_s, self.same_off_s) if kind == _SAME else (self.near_on_s, self.near_off_s)
            hears, at_s = chance.random() < on_s / (on_s + off_s), start_s
            while at_s < end_s:
                if hears:
                    middle = math.log(on_s) - self.on_sigma**2 / 2
                    until_s = at_s + max(1.0, chance.lognormvariate(middle, self.on_sigma))
                    if found and at_s - found[-1][1] < self.gap_min_s:
                        found[-1] = found[-1][0], min(until_s, end_s)
                    else:
                        found.append((at_s, min(until_s, end_s)))
                else:
                    beyond_s = off_s - self.gap_min_s
                    until_s = at_s + self.gap_min_s + (chance.expovariate(1 / beyond_s) if beyond_s else 0.0)
                hears, at_s = not hears, until_s
        return [(start_s, end_s) for start_s, end_s in found if end_s - start_s >= 1.0]

    def _one_way(
        self, chance: random.Random, links: Sequence[tuple[str, str, float, float]], day: int
    ) -> Iterator[Contact]:
        """Yield the contacts of a day; some of the short ones become shorter, and work one way."""
        short = [place for place, (_, _, start_s, end_s) in enumerate(links) if end_s - start_s < _MINUTE_S]
        chosen = frozenset(chance.sample(short, min(round(self.one_way * len(links)), len(short))))
        for place, (a, b, start_s, end_s) in enumerate(links):
            heard = ""
            if place in chosen:
                end_s = min(end_s, start_s + 1.0 + chance.expovariate(1 / self.one_way_s))  # noqa: PLW2901
                heard = chance.choice((a, b))
            yield Contact(min(a, b), max(a, b), _us(day, start_s), _us(day, end_s), heard)


def _overlaid(line: Sequence[_Stretch], new: _Stretch) -> list[_Stretch]:
    """Return a day in which a stretch replaces what was there."""
    if new.start_s >= new.end_s:
        return list(line)
    start_s, end_s = max(new.start_s, line[0].start_s), min(new.end_s, line[-1].end_s)
    kept = [each._replace(end_s=min(each.end_s, start_s)) for each in line if each.start_s < start_s]
    kept.append(new._replace(start_s=start_s, end_s=end_s))
    return kept + [each._replace(start_s=max(each.start_s, end_s)) for each in line if each.end_s > end_s]


def _classes(one: Sequence[_Stretch], two: Sequence[_Stretch]) -> list[tuple[float, float, str]]:
    """Return the spans in which two people are in one room, or near, each as long as nothing changes about that."""
    found: list[tuple[float, float, str]] = []
    for mine in one:
        for yours in two:
            start_s, end_s = max(mine.start_s, yours.start_s), min(mine.end_s, yours.end_s)
            kind = _class(mine.place, yours.place)
            if start_s >= end_s or not kind:
                continue
            if found and found[-1][1:] == (start_s, kind):
                found[-1] = found[-1][0], end_s, kind
            else:
                found.append((start_s, end_s, kind))
    return found


def _class(one: _Place, two: _Place) -> str:
    """Return the class of two places: `_SAME`, `_NEAR` or, of those that are apart, nothing."""
    if one == two:
        return "" if one.kind == _AWAY else _SAME
    kinds = {one.kind, two.kind}
    adjacent = kinds == {_OFFICE} and abs(one.number - two.number) == 1
    return _NEAR if adjacent or kinds == {_OFFICE, _CORRIDOR} else ""


def _presence(name: str, day: int, start_s: float, end_s: float, duration_us: int) -> Presence:
    end_us = _us(day, end_s)
    return Presence(name, _us(day, start_s), None if end_us >= duration_us else end_us)


def _us(day: int, t_s: float) -> int:
    return round((day * _DAY_S + t_s) * MICROSECONDS)
