"""`tachograph silence`: planned quiet for one run, through Alertmanager's own silences."""
