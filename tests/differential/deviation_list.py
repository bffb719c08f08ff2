"""The whole list."""

from __future__ import annotations

from tests.differential.deviations import listed
from tests.differential.deviations_of_ids import IDS
from tests.differential.deviations_of_input import INPUT
from tests.differential.deviations_of_masters import MASTERS

DEVIATIONS = listed(INPUT, IDS, MASTERS)
