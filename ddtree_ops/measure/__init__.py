"""Load, statistics, comparison and reports."""
