"""Runs measurements on a GPU, each in a separate process, and makes tables of their output."""

from harness.results import Result, Results
from harness.suite import ROOT, Figures, Point, Suite, counts
from harness.tables import cell, table

__all__ = ["ROOT", "Figures", "Point", "Result", "Results", "Suite", "cell", "counts", "table"]
