"""Nodes to work on: embedded, real systemd hosts, and the reference engine."""
