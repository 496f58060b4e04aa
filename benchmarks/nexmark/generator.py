"""Events of an auction site: people, auctions and bids, with the fields and distributions of nexmark/nexmark.

Of 50 events in a row, the first is a person, the next three are auctions, and 46 are bids. Half of the bids are on a
hot auction, three quarters by a hot bidder; the other ids are those of recent auctions and people, and of a few that do
not exist yet. Prices are spread over six powers of ten.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["TABLES", "Events", "tables", "write"]

Longs = npt.NDArray[np.int64]

_PEOPLE, _AUCTIONS, _ALL = 1, 3, 50
"""People and auctions among so many events; the rest are bids."""
_FIRST_ID, _FIRST_CATEGORY, _CATEGORIES = 1000, 10, 5
_IN_FLIGHT, _ACTIVE, _LEAD = 100, 1000, 10
"""Auctions and people that ids are drawn from, and ids ahead of them."""
_HOT_AUCTION, _HOT_BIDDER, _HOT_SELLER, _HOT_CHANNEL = 2, 4, 4, 2
"""One in so many is not hot."""
_SHARED = 100
"""So many auctions or people in a row have one hot one."""
_CHANNELS = 10_000
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_PERSON_BYTES, _AUCTION_BYTES, _BID_BYTES = 200, 500, 100
"""Mean sizes, which `extra` fills up."""

TABLES = ("person", "auction", "bid")
FILE_EVENTS = 500_000
"""Events in a file of each table; each is drawn from a random generator of its own, so that more events add files."""


@dataclass(frozen=True)
class Events:
    """Which events to generate.

    Args:
        number: Number of events.
        seed: Equal seeds give equal events.
        rate: Events per second of event time.
        start: Time of the first event, in milliseconds since 1970.
    """

    number: int
    seed: int = 17
    rate: int = 10_000
    start: int = 1_436_918_400_000

    @property
    def end(self) -> int:
        """The time after the last event, in milliseconds since 1970."""
        return self.start + self.number * 1000 // self.rate


def tables(events: Events) -> Iterator[dict[str, pa.Table]]:
    """Yields the tables of the events, in parts that follow each other in time."""
    urls = _Channels(np.random.default_rng([events.seed, 0]))
    for part, first in enumerate(range(0, events.number, FILE_EVENTS)):
        random = np.random.default_rng([events.seed, 1, part])
        ids = np.arange(first, min(first + FILE_EVENTS, events.number), dtype=np.int64)
        offset = ids % _ALL
        bidding = offset >= _PEOPLE + _AUCTIONS
        yield {
            "person": _people(events, random, ids[offset < _PEOPLE]),
            "auction": _auctions(events, random, ids[(offset >= _PEOPLE) & ~bidding]),
            "bid": _bids(events, random, ids[bidding], urls),
        }


def write(folder: Path, events: Events) -> None:
    """Writes the events as Parquet files, a folder for each table, unless they are there already.

    Raises:
        FileExistsError: The folder has other events.
    """
    marker = folder / "events.json"
    if marker.exists():
        if json.loads(marker.read_text()) != asdict(events):
            raise FileExistsError(
                f"{folder} has other events, {marker.read_text()}: choose another folder, or delete it"
            )
        return
    for name in TABLES:
        (folder / name).mkdir(parents=True)
    for number, part in enumerate(tables(events)):
        for name, table in part.items():
            words = [c for c in table.column_names if c in ("channel", "url", "city", "state", "name")]
            pq.write_table(table, folder / name / f"{number:05}.parquet", use_dictionary=words)
    marker.write_text(json.dumps(asdict(events)))


def _times(events: Events, ids: Longs) -> Longs:
    return events.start + ids * 1000 // events.rate


def _last_person(ids: Longs) -> Longs:
    return ids // _ALL


def _last_auction(ids: Longs) -> Longs:
    """Returns the newest auction at each event, from 0. It may be that event."""
    offset = ids % _ALL
    newest = np.where(offset < _PEOPLE, -1, np.minimum(offset - _PEOPLE, _AUCTIONS - 1))
    return ids // _ALL * _AUCTIONS + newest


def _some_person(random: np.random.Generator, ids: Longs) -> Longs:
    people = _last_person(ids) + 1
    active = np.minimum(people, _ACTIVE)
    return people - active + random.integers(0, active + _LEAD)


def _some_auction(random: np.random.Generator, ids: Longs) -> Longs:
    newest = _last_auction(ids)
    oldest = np.maximum(newest - _IN_FLIGHT, 0)
    return oldest + random.integers(0, newest - oldest + 1 + _LEAD)


def _prices(random: np.random.Generator, number: int) -> Longs:
    return np.rint(np.power(10.0, random.random(number) * 6) * 100).astype(np.int64)


def _people(events: Events, random: np.random.Generator, ids: Longs) -> pa.Table:
    n = len(ids)
    name = _joined(" ", _words(random, _FIRST_NAMES, n), _words(random, _LAST_NAMES, n))
    user, host = (_texts(random, _lengths(random, n, most), " ") for most in (7, 5))
    fours = [pc.utf8_lpad(pa.array(random.integers(0, 10_000, n)).cast(pa.string()), 4, "0") for _ in range(4)]
    columns = {
        "id": _last_person(ids) + _FIRST_ID,
        "name": name,
        "email_address": _joined("", user, "@", host, ".com"),
        "credit_card": _joined(" ", *fours),
        "city": _words(random, _CITIES, n),
        "state": _words(random, _STATES, n),
        "date_time": _times(events, ids),
    }
    return _with_extra(random, columns, _PERSON_BYTES)


def _auctions(events: Events, random: np.random.Generator, ids: Longs) -> pa.Table:
    n, times = len(ids), _times(events, ids)
    hot = random.integers(0, _HOT_SELLER, n) > 0
    seller = np.where(hot, _last_person(ids) // _SHARED * _SHARED, _some_person(random, ids))
    ahead = _times(events, ids + _IN_FLIGHT * _ALL // _AUCTIONS) - times
    initial = _prices(random, n)
    columns = {
        "id": _last_auction(ids) + _FIRST_ID,
        "item_name": _texts(random, _lengths(random, n, 20), " "),
        "description": _texts(random, _lengths(random, n, 100), " "),
        "initial_bid": initial,
        "reserve": initial + _prices(random, n),
        "date_time": times,
        "expires": times + 1 + random.integers(0, np.maximum(2 * ahead, 1)),
        "seller": seller + _FIRST_ID,
        "category": _FIRST_CATEGORY + random.integers(0, _CATEGORIES, n),
    }
    return _with_extra(random, columns, _AUCTION_BYTES)


def _bids(events: Events, random: np.random.Generator, ids: Longs, channels: _Channels) -> pa.Table:
    n = len(ids)
    hot = random.integers(0, _HOT_AUCTION, n) > 0
    auction = np.where(hot, _last_auction(ids) // _SHARED * _SHARED, _some_auction(random, ids))
    hot = random.integers(0, _HOT_BIDDER, n) > 0
    bidder = np.where(hot, _last_person(ids) // _SHARED * _SHARED + 1, _some_person(random, ids))
    hot = random.integers(0, _HOT_CHANNEL, n) > 0
    few = len(_HOT_CHANNELS)
    channel = pa.array(np.where(hot, random.integers(0, few, n), few + random.integers(0, _CHANNELS, n)))
    columns = {
        "auction": auction + _FIRST_ID,
        "bidder": bidder + _FIRST_ID,
        "price": _prices(random, n),
        "channel": channels.names.take(channel),
        "url": channels.urls.take(channel),
        "date_time": _times(events, ids),
    }
    return _with_extra(random, columns, _BID_BYTES, fixed=32)


class _Channels:
    """The names of the channels, hot ones first, and a page for each. Nine in ten of the others have an id in it."""

    def __init__(self, random: np.random.Generator) -> None:
        numbers = np.arange(_CHANNELS)
        others = _joined("-", "channel", pa.array(numbers).cast(pa.string()))
        self.names = pa.concat_arrays([pa.array(_HOT_CHANNELS), others])
        n = len(self.names)
        path = [_texts(random, _lengths(random, n, 5), "_") for _ in range(3)]
        page = _joined("/", "https://www.nexmark.com", *path, "item.htm?query=1")
        channel_id = pa.array([None] * len(_HOT_CHANNELS) + [_reversed_bits(i) for i in range(_CHANNELS)], pa.string())
        known = pa.array(random.integers(0, 10, n) > 0)
        suffix = pc.if_else(known, pc.binary_join_element_wise("&channel_id=", channel_id, ""), None)
        self.urls = pc.binary_join_element_wise(page, pc.fill_null(suffix, ""), "")


def _reversed_bits(number: int) -> str:
    """Returns the bits of a 32-bit integer in reverse order, as a signed number without its sign."""
    found = int(f"{number:032b}"[::-1], 2)
    return str(abs(found - (1 << 32) if found >= 1 << 31 else found))


def _words(random: np.random.Generator, words: tuple[str, ...], number: int) -> pa.StringArray:
    return pa.array(words).take(pa.array(random.integers(0, len(words), number)))


def _joined(separator: str, *columns: Any) -> pa.StringArray:
    return pc.binary_join_element_wise(*columns, separator)


def _lengths(random: np.random.Generator, number: int, most: int) -> Longs:
    return random.integers(3, most, number)


def _texts(random: np.random.Generator, lengths: Longs, rare: str = "") -> pa.StringArray:
    """Returns texts of random small letters. One in 13 is the rare character instead, if there is one."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    letters = random.integers(ord("a"), ord("z") + 1, offsets[-1], dtype=np.uint8)
    if rare:
        letters[random.integers(0, 13, offsets[-1], dtype=np.uint8) == 0] = ord(rare)
    texts = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(letters))
    return pc.utf8_trim_whitespace(texts) if rare == " " else texts


def _with_extra(random: np.random.Generator, columns: dict[str, Any], mean: int, fixed: int | None = None) -> pa.Table:
    """Adds the text that fills up a record to a mean size, give or take a fifth of what is left."""
    number = len(next(iter(columns.values())))
    size = np.full(number, 0 if fixed is None else fixed)
    if fixed is None:
        for column in columns.values():
            size += pc.utf8_length(column).to_numpy() if isinstance(column, pa.StringArray) else 8
    left = np.maximum(mean - size, 0)
    spread = np.rint(left * 0.2).astype(np.int64)
    lengths = left - spread + random.integers(0, np.maximum(2 * spread, 1))
    return pa.table({**columns, "extra": _texts(random, lengths)})
