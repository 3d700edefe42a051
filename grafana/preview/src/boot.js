// Grafana's libraries read this while they load, so it stands before the bundle.
window.__grafana_public_path__ = '/public/';
window.grafanaBootData = {
  settings: { featureToggles: {}, buildInfo: { version: '12.4.10', edition: 'oss' }, appUrl: `${location.origin}/`, appSubUrl: '' },
  user: { timezone: 'browser' },
  navTree: [],
};
