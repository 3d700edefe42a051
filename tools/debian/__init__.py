"""The Debian package: its files, its manual and completions, and how it is built."""
