"""Report finished runs: read them into one table, and write tables, tests of contrasts and figures."""

from ntl.report.program import remove_report, report

__all__ = ["remove_report", "report"]
