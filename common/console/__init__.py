"""Commands: options, start-up, threads, progress, tables on a terminal."""
