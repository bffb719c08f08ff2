from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sla_reports.session import start_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("tests", master="local[2]", short_jobs=True)
    yield session
    session.stop()
