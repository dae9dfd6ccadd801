"""The remote machine: SSH, agent, systemd, journal, GPUs, lock and guard."""
