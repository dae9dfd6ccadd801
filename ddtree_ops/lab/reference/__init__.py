"""A small transformer with a block drafter behind SGLang's flags, routes and log lines; lab nodes run it."""
