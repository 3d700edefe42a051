// What several panels share: defaults of their own properties, a first colour mode, and what stands where no data is.
import {
  FieldColorModeId,
  FieldConfigProperty,
  identityOverrideProcessor,
  LoadingState,
  PanelProps,
  SetFieldConfigOptionsArgs,
} from '@grafana/data';
import { useTheme2 } from '@grafana/ui';
import { ComponentType, useRef } from 'react';

/** Return how a panel's own properties (`fieldConfig.defaults.custom`) are read: as they are, with these defaults. */
export function own(defaults: Record<string, unknown>): SetFieldConfigOptionsArgs<any>['useCustomConfig'] {
  return (builder) => {
    for (const [path, defaultValue] of Object.entries(defaults)) {
      builder.addCustomEditor({
        id: path,
        path,
        name: path,
        editor: () => null,
        override: () => null,
        process: identityOverrideProcessor,
        shouldApply: () => true,
        defaultValue,
      } as any);
    }
  };
}

/** Return the setting that colours values with this mode unless the dashboard says otherwise. */
export function colour(mode: FieldColorModeId): SetFieldConfigOptionsArgs<any> {
  const settings = { byValueSupport: true, bySeriesSupport: true, preferThresholdsMode: mode === FieldColorModeId.Thresholds };
  return { standardOptions: { [FieldConfigProperty.Color]: { settings, defaultValue: { mode } } } };
}

export const BY_THRESHOLDS = colour(FieldColorModeId.Thresholds);

export function Instead({ text, wrong = false }: { text: string; wrong?: boolean }) {
  const theme = useTheme2();
  return (
    <div
      data-preview={wrong ? 'failed' : 'empty'}
      style={{
        display: 'flex',
        height: '100%',
        alignItems: 'center',
        justifyContent: 'center',
        textAlign: 'center',
        overflow: 'auto',
        color: wrong ? theme.colors.error.text : theme.colors.text.secondary,
      }}
    >
      {text}
    </div>
  );
}

/**
 * Return a panel that says what is wrong where its query failed, and its "no value" text where there is no sample.
 * A `ready` panel has its own way to show that there is no sample.
 */
export function filled<P extends PanelProps<any>>(Panel: ComponentType<P>, ready = false): ComponentType<P> {
  return function Filled(props: P) {
    const { data, fieldConfig } = props;
    const answered = useRef(false);
    answered.current ||= data.state === LoadingState.Done;
    if (data.state === LoadingState.Error) {
      return <Instead wrong text={data.errors?.[0]?.message ?? data.error?.message ?? 'the query failed'} />;
    }
    if (!data.series.some((frame) => frame.length)) {
      if (!answered.current) {
        return null; // not asked yet: nothing can be said
      }
      if (!ready) {
        return <Instead text={fieldConfig.defaults.noValue || 'No data'} />;
      }
    }
    return (
      <div data-preview="drawn" style={{ height: '100%' }}>
        <Panel {...props} />
      </div>
    );
  };
}
