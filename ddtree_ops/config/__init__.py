"""Text to model: inventory, profiles, playbooks, units; errors carry file, line and key."""
