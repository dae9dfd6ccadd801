"""Carries plans out: steps, gates, journal, interrupts, order of a fleet."""
