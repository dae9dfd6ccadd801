"""SGLang by version: flags, HTTP, log phases, counters."""
