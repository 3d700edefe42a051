#!/usr/bin/env bash
# Makes grafana-N.json, the schema of one major of Grafana, from classic.ts and that major's published types:
#   ./make.sh 11.6.16 12.4.11 13.2.3
# Needs node and the npm registry; it works in a folder of its own, which it removes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cp "$here/classic.ts" .
npm install --silent --no-save --prefix . ts-json-schema-generator@2.9.0
for version in "$@"; do
  npm install --silent --no-save --prefix . --ignore-scripts "@grafana/schema@$version" ts-json-schema-generator@2.9.0
  rm -rf types && mkdir types
  raw=$(find node_modules/@grafana/schema/dist -type d -path '*/raw/dashboard' | head -1)/..
  # The majors differ in where the types lie, not in what they are called.
  echo "export * from '../$(ls "$raw"/dashboard/x/*types.gen.d.ts | sed 's/\.d\.ts$//')';" > types/index.ts
  for kind in bargauge gauge heatmap stat statetimeline table text timeseries; do
    echo "export * from '../$(ls "$raw"/composable/$kind/panelcfg/x/*types.gen.d.ts | sed 's/\.d\.ts$//')';" > "types/$kind.ts"
  done
  npx ts-json-schema-generator --path classic.ts --type Whole --no-type-check --no-top-ref --jsDoc none --minify \
    --out "$here/grafana-${version%%.*}.json"
done
