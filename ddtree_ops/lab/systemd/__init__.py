"""Real hosts on one machine: systemd as PID 1 and OpenSSH, each with its own address. Root on Linux only."""
