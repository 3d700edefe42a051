"""The servers that are asked: over HTTP, Prometheus and Alertmanager."""
