"""`tachograph bundle`: rules, routes, dashboards and runbooks for a site, as files or as Kubernetes objects."""
