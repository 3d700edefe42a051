"""`tachograph silence`: silences the alerts of one run through Alertmanager."""
