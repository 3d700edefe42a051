"""`tachograph supervise`: starts a training, and restarts it by policy when its exporter concludes that it stands."""
