"""Our dashboards in a browser where no Grafana is at hand: a small server on loopback, and the prebuilt viewer."""
