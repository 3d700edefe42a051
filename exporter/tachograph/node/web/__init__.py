"""The HTTP server: connections, access, /metrics and the health checks."""
