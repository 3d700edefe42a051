"""Prometheus, Alertmanager and node_exporter from Debian's packages, into .tools/."""
