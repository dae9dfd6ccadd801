"""Frozen values that the other rooms exchange; no behaviour beyond their own arithmetic."""
