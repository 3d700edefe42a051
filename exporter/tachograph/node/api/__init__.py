"""The answer to `/api/node`: it lays out what was concluded, for the status page, too, and judges nothing itself."""
