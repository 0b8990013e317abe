"""Worker processes: starting, watching and ending them, and keeping what they print."""
