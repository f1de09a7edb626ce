"""The record of a run: what its updates did to every token.

recorder   writes RUN/records/: the tokens that a rule touched and a sample of the others
tables     writes and reads RUN/tables/: whole updates of some steps, to plan them again
reading    reads both, and has the columns of records/
metrics    the metrics of an update's loss; token_metrics and sampler_metrics have the others
"""

from rlobj.records.reading import open_records, read_records
from rlobj.records.tables import UpdateTable, read_tables

__all__ = ["UpdateTable", "open_records", "read_records", "read_tables"]
