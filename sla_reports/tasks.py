"""Work that Spark's Python workers do by themselves: a frame of numbers, each of which stands for a file, a day or a byte range."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

TASKS_PER_CORE: Final = 4
Item = TypeVar("Item")


def tasks_of(spark: SparkSession, items: int) -> DataFrame:
    """A row for each item. A task costs more than a small item, so there are some for each core, not one for each item."""
    return spark.range(0, items, 1, max(1, min(items, TASKS_PER_CORE * spark.sparkContext.defaultParallelism)))


def own(items: Sequence[Item], tasks: Iterator[pa.RecordBatch]) -> Iterator[Item]:
    """The items whose numbers a worker got."""
    for batch in tasks:
        for index in batch.column("id").to_pylist():
            yield items[index]
