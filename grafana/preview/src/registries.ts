// What Grafana itself would register at its start: how each standard property of a field is read, and its transformations.
import {
  booleanOverrideProcessor,
  dataLinksOverrideProcessor,
  displayNameOverrideProcessor,
  identityOverrideProcessor,
  numberOverrideProcessor,
  standardEditorsRegistry,
  standardFieldConfigEditorRegistry,
  standardTransformers,
  standardTransformersRegistry,
  stringOverrideProcessor,
  thresholdsOverrideProcessor,
  unitOverrideProcessor,
  valueMappingsOverrideProcessor,
} from '@grafana/data';

const NO_EDITOR = () => null;
const GREEN_TO_RED = { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }, { value: 80, color: 'red' }] };

const FIELD_PROPERTIES: Array<[id: string, process: unknown, defaultValue?: unknown]> = [
  ['unit', unitOverrideProcessor],
  ['min', numberOverrideProcessor],
  ['max', numberOverrideProcessor],
  ['fieldMinMax', booleanOverrideProcessor],
  ['decimals', numberOverrideProcessor],
  ['displayName', displayNameOverrideProcessor],
  ['color', identityOverrideProcessor],
  ['noValue', stringOverrideProcessor],
  ['links', dataLinksOverrideProcessor],
  ['actions', identityOverrideProcessor],
  ['mappings', valueMappingsOverrideProcessor, []],
  ['thresholds', thresholdsOverrideProcessor, GREEN_TO_RED],
  ['filterable', booleanOverrideProcessor],
];

export function fillRegistries(): void {
  standardEditorsRegistry.setInit(() => []);
  standardFieldConfigEditorRegistry.setInit(
    () =>
      FIELD_PROPERTIES.map(([id, process, defaultValue]) => ({
        id,
        path: id,
        name: id,
        category: [],
        editor: NO_EDITOR,
        override: NO_EDITOR,
        process,
        shouldApply: () => true,
        defaultValue,
      })) as any,
  );
  // Some transformations are exported under two names; a registry takes each id once.
  const each = new Map(Object.values(standardTransformers).map((one) => [one.id, one]));
  standardTransformersRegistry.setInit(
    () =>
      [...each.values()].map((transformation) => ({
        id: transformation.id,
        name: transformation.name ?? transformation.id,
        transformation,
        editor: NO_EDITOR,
      })) as any,
  );
}
