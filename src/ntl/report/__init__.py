"""Report finished runs: read them into one table, and write tables, tests of contrasts and figures."""

from ntl.report.program import FILES, report

__all__ = ["FILES", "report"]
