"""Facts and a goal to the ordered steps between them; pure."""
