// The panel types our dashboards name. Grafana publishes their parts, not the panels: each file here puts one together.
import { PanelPlugin } from '@grafana/data';
import { sceneUtils } from '@grafana/scenes';
import { stat } from './stat';
import { stateTimeline } from './stateTimeline';
import { table } from './table';
import { timeseries } from './timeseries';

const PANELS: Record<string, PanelPlugin<any, any>> = {
  timeseries,
  stat,
  table,
  'state-timeline': stateTimeline,
};

export function registerPanels(): void {
  for (const [id, plugin] of Object.entries(PANELS)) {
    plugin.meta = {
      id,
      name: id,
      type: 'panel',
      sort: 1,
      module: '',
      baseUrl: '',
      info: { logos: {}, version: '' },
    } as any;
    plugin.setDataSupport({ annotations: true, alertStates: false });
    sceneUtils.registerRuntimePanelPlugin({ pluginId: id, plugin });
  }
}
