// The scene of a dashboard: variables and marks, the panels below; its time stands in the page's header.
import {
  dataLayers,
  SceneComponentProps,
  SceneDataLayerSet,
  SceneGridLayout,
  SceneObjectBase,
  SceneObjectState,
  SceneRefreshPicker,
  SceneTimePicker,
  VariableValueSelectors,
} from '@grafana/scenes';
import { InlineSwitch } from '@grafana/ui';

interface DashboardSceneState extends SceneObjectState {
  variables: VariableValueSelectors;
  time: SceneTimePicker;
  refresh: SceneRefreshPicker;
  body: SceneGridLayout;
}

function Toggle({ layer }: { layer: dataLayers.AnnotationsDataLayer }) {
  const { name, isEnabled, isHidden, key, data } = layer.useState();
  if (isHidden) {
    return null;
  }
  const failure = data?.errors?.[0]?.message;
  return (
    <InlineSwitch
      id={key}
      label={failure ? `${name}: ${failure}` : name}
      showLabel
      value={isEnabled}
      onChange={() => layer.setState({ isEnabled: !isEnabled })}
    />
  );
}

/** The time range and the refresh of a dashboard. */
export function Times({ scene }: { scene: DashboardScene }) {
  const { time, refresh } = scene.useState();
  return (
    <div style={{ display: 'flex', gap: 8 }}>
      <time.Component model={time} />
      <refresh.Component model={refresh} />
    </div>
  );
}

export class DashboardScene extends SceneObjectBase<DashboardSceneState> {
  static Component = ({ model }: SceneComponentProps<DashboardScene>) => {
    const { variables, body, $data } = model.useState();
    const layers = ($data as SceneDataLayerSet).state.layers as dataLayers.AnnotationsDataLayer[];
    return (
      <div style={{ display: 'flex', flexDirection: 'column', flexGrow: 1, gap: 16, minWidth: 0 }}>
        <div style={{ display: 'flex', flexWrap: 'wrap', gap: 8, alignItems: 'flex-start' }}>
          <variables.Component model={variables} />
          {layers.map((layer) => (
            <Toggle key={layer.state.key} layer={layer} />
          ))}
        </div>
        <div style={{ flexGrow: 1, display: 'flex' }}>
          <body.Component model={body} />
        </div>
      </div>
    );
  };
}
