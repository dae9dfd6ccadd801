"""The embedded node: an SSH server in a private directory, and stand-ins for the parts of systemd used."""
