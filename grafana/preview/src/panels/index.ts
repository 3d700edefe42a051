// The panel types a dashboard can name. Grafana publishes their parts, not the panels: each file here puts one together.
import { PanelPlugin } from '@grafana/data';
import { sceneUtils } from '@grafana/scenes';
import { bargauge } from './bargauge';
import { gauge } from './gauge';
import { heatmap } from './heatmap';
import { stat } from './stat';
import { stateTimeline } from './stateTimeline';
import { table } from './table';
import { text } from './text';
import { timeseries } from './timeseries';

const PANELS: Record<string, PanelPlugin<any, any>> = {
  timeseries,
  stat,
  gauge,
  bargauge,
  table,
  text,
  heatmap,
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
      skipDataQuery: plugin === text,
      info: { logos: {}, version: '' },
    } as any;
    plugin.setDataSupport({ annotations: true, alertStates: false });
    sceneUtils.registerRuntimePanelPlugin({ pluginId: id, plugin });
  }
}
