"""Text for people: figures, durations, moments, wrapped and printable lines, and what must not be shown."""
