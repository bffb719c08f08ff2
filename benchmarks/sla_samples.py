"""Makes the samples the benchmark reads: a month of gauges in a Parquet lake, a file a day, as `sla_reports.readers.lake` keeps it.

Each series is scraped every 15 s. In the month it has some twelve outages of a minute or so, three silences (some of them after a
stale marker), and now and then a scrape is lost. Everything follows from the seed and the number of samples. Series of one
target share their scrape times, targets do not. Written with Arrow directly: a lake of 500 million samples costs two minutes,
not the half hour that Spark's sort would take.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

DAYS: Final = 30
STEP_MS: Final = 15_000
START_MS: Final = int(dt.datetime(2026, 10, 1, tzinfo=dt.UTC).timestamp() * 1000)
DAY_MS: Final = 86_400_000
_SCRAPES_A_DAY: Final = DAY_MS // STEP_MS
_SCRAPES: Final = DAYS * _SCRAPES_A_DAY
_SERIES_PER_TARGET: Final = 60
_ROWS_PER_GROUP: Final = 1_000_000
# Sample codes below the values 0 to 3.
_LOST, _STALE = -1, -2


@dataclass(frozen=True)
class Lake:
    """Where the samples are and how many there are."""

    folder: Path
    samples: int
    series: int
    bytes: int

    def files(self) -> list[Path]:
        """A file a day, in order."""
        return sorted(self.folder.glob("day=*/*.parquet"))


def make_lake(folder: Path, *, samples: int, seed: int = 1) -> Lake:
    """A lake with about so many samples; one that is there already is used again."""
    told = folder / "_benchmark.json"
    if told.exists():
        known = json.loads(told.read_text())
        if known["asked"] == [samples, seed]:
            return Lake(folder, known["samples"], known["series"], known["bytes"])
        raise ValueError(f"lake {folder}: holds {known['asked']} (samples, seed); expected {[samples, seed]}")
    # Who is interrupted leaves half a lake: it gets its name when it is whole.
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    names = series_names(max(1, round(samples / _SCRAPES)))
    events = _events(np.random.default_rng(seed), names)
    written = 0
    for day in range(DAYS):
        date = dt.date(2026, 10, 1) + dt.timedelta(days=day)
        (partial / f"day={date}").mkdir(parents=True)
        written += _write_day(partial / f"day={date}" / "part-0.parquet", names, events, day)
    stored = sum(path.stat().st_size for path in partial.glob("day=*/*.parquet"))
    asked = {"asked": [samples, seed], "samples": written, "series": len(names), "bytes": stored}
    (partial / told.name).write_text(json.dumps(asked))
    partial.rename(folder)
    return Lake(folder, written, len(names), stored)


def series_names(count: int) -> list[str]:
    """Sorted, as the lake has them; of each group two gauges."""
    return sorted(
        f'brokergroup_{"group_writable" if number % 2 else "sync_state_set_size"}{{broker_group="bg-{number // 2:05}",'
        f'cluster="DefaultCluster",instance="10.0.{number // _SERIES_PER_TARGET}.1:8080",job="brokergroup",namespace="default"}}'
        for number in range(count)
    )


def _events(rng: np.random.Generator, names: list[str]) -> dict[str, Any]:
    """What happens to whom, from which scrape to which, and the code of the samples then; later ones win."""
    kinds = []
    for per_month, median, shown in ((12, 4, 0), (3, 20, _LOST), (35, 1, _LOST)):
        count = rng.poisson(per_month * len(names))
        length = np.maximum(1, rng.lognormal(np.log(median), 1.0 if median > 1 else 0.0, count)).astype(np.int64)
        begin = rng.integers(0, _SCRAPES, count)
        kinds.append((rng.integers(0, len(names), count), begin, begin + length, np.full(count, shown)))
        if median == 20:
            stale = rng.random(count) < 1 / 3
            kinds.append((kinds[-1][0][stale], begin[stale], begin[stale] + 1, np.full(stale.sum(), _STALE)))
    series, begin, end, code = (np.concatenate(column) for column in zip(*kinds, strict=True))
    calm = np.array([3 if "sync_state_set" in name else 1 for name in names], dtype=np.int8)
    targets = np.array([int(name.partition('instance="10.0.')[2].partition(".")[0]) for name in names])
    offsets = np.random.default_rng(5).integers(0, STEP_MS, targets.max() + 1)[targets]
    return {"series": series, "begin": begin, "end": end, "code": code, "calm": calm, "offsets": offsets}


def _write_day(path: Path, names: list[str], events: dict[str, Any], day: int) -> int:
    first = day * _SCRAPES_A_DAY
    codes = np.repeat(events["calm"][:, None], _SCRAPES_A_DAY, axis=1)
    touched = (events["begin"] < first + _SCRAPES_A_DAY) & (events["end"] > first)
    columns = (events[name][touched] for name in ("series", "begin", "end", "code"))
    for series, begin, end, code in zip(*(column.tolist() for column in columns), strict=True):
        row = codes[series, max(0, begin - first) : end - first]
        # An outage of a replica leaves the SyncStateSet at 2; of the master nobody can write.
        row[:] = 2 if code == 0 and events["calm"][series] == 3 else code
    times = START_MS + day * DAY_MS + np.arange(_SCRAPES_A_DAY, dtype=np.int64) * STEP_MS
    schema = pa.schema([("series", pa.string()), ("ts_ms", pa.int64()), ("value", pa.float64())])
    dictionary, at_a_time, rows = pa.array(names, pa.string()), max(1, _ROWS_PER_GROUP // _SCRAPES_A_DAY), 0
    # Without Arrow's own schema in it the file says what Spark's say.
    with pq.ParquetWriter(path, schema, compression="zstd", store_schema=False) as writer:
        for begin in range(0, len(names), at_a_time):
            some = codes[begin : begin + at_a_time]
            there = some != _LOST
            number = np.repeat(np.arange(begin, begin + len(some), dtype=np.int32), there.sum(axis=1))
            ts_ms = (events["offsets"][begin : begin + at_a_time, None] + times[None, :])[there]
            value = np.where(some == _STALE, np.nan, some)[there]
            series_column = pa.DictionaryArray.from_arrays(pa.array(number), dictionary).cast(pa.string())
            writer.write_table(pa.table([series_column, pa.array(ts_ms), pa.array(value)], schema=schema))
            rows += len(number)
    return rows
