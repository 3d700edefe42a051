"""`tachograph dashboards`: the dashboards in a browser without Grafana, from a small server on loopback."""
