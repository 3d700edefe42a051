// Builds the viewer into out/, or into the folder named: node build.mjs [FOLDER]
import * as esbuild from 'esbuild';
import fs from 'node:fs';
import path from 'node:path';
import { gzipSync } from 'node:zlib';
import { fileURLToPath } from 'node:url';
import { licences } from './licences.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const target = path.resolve(process.argv[2] ?? path.join(here, 'out'));
const out = `${target}.new`; // takes its place when it is whole
const grafana = path.join(here, 'node_modules/@grafana');

// Two copies of a Grafana library are two registries, of which one stays empty: every import gets the same file.
const entries = { '@grafana/ui/unstable': 'ui/dist/cjs/unstable.cjs', '@grafana/scenes': 'scenes/dist/index.js' };
for (const name of ['data', 'runtime', 'ui', 'schema', 'i18n', 'e2e-selectors']) {
  entries[`@grafana/${name}`] = `${name}/dist/cjs/index.cjs`;
}
const oneCopy = {
  name: 'one-copy',
  setup(build) {
    build.onResolve({ filter: /^@grafana\// }, ({ path: wanted }) =>
      wanted in entries ? { path: path.join(grafana, entries[wanted]) } : undefined,
    );
  },
};

// The table writes a loop as text and evaluates it, which our content policy forbids: the same loop, as code. (Frames
// inside frames, which it also unfolds there, come from no Prometheus.)
const EVALUATED = 'new Function("frame", "nestedFramesFieldName", fnBody)';
const AS_CODE = `(frame) => Array.from({ length: frame.length }, (_, i) =>
  frame.fields.reduce((row, field) => { row[getDisplayName(field)] = field.values[i]; return row; }, { __depth: 0, __index: i }))`;
const noEvaluation = {
  name: 'no-evaluation',
  setup(build) {
    build.onLoad({ filter: /TableNG\/utils\.cjs$/ }, async ({ path: file }) => {
      const text = await fs.promises.readFile(file, 'utf8');
      if (!text.includes(EVALUATED)) {
        throw new Error(`${file} no longer has ${EVALUATED}: see build.mjs`);
      }
      return { contents: text.replace(EVALUATED, () => AS_CODE), loader: 'js' };
    });
  },
};

fs.rmSync(out, { recursive: true, force: true });
const { metafile } = await esbuild.build({
  absWorkingDir: here,
  entryPoints: { main: 'src/main.tsx' },
  outdir: path.join(out, 'assets'),
  bundle: true,
  minify: true,
  legalComments: 'none', // licences.mjs writes whole texts
  metafile: true,
  jsx: 'automatic',
  target: 'es2022',
  alias: { 'get-document': './src/ownerDocument.cjs' },
  plugins: [oneCopy, noEvaluation],
  define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
  loader: { '.woff2': 'dataurl', '.woff': 'empty', '.ttf': 'empty', '.svg': 'dataurl', '.png': 'dataurl' },
  logLevel: 'error',
});
fs.copyFileSync(path.join(here, 'index.html'), path.join(out, 'index.html'));
fs.copyFileSync(path.join(here, 'src/boot.js'), path.join(out, 'assets/boot.js'));
fs.cpSync(path.join(grafana, 'ui/dist/public/img/icons'), path.join(out, 'public/build/img/icons'), { recursive: true });
fs.cpSync(path.join(here, 'icons'), path.join(out, 'public/build/img/icons/unicons'), { recursive: true }); // unpublished ones
for (const [kind, name] of [['400-normal', 'Regular'], ['500-normal', 'Medium'], ['400-italic', 'Italic']]) {
  const file = path.join(here, `node_modules/@fontsource/inter/files/inter-latin-${kind}.woff2`);
  fs.cpSync(file, path.join(out, `public/fonts/inter/Inter-${name}.woff2`));
}
fs.cpSync(path.join(here, '../dashboards'), path.join(out, 'dashboards'), { recursive: true });

const held = [...Object.keys(metafile.inputs), 'node_modules/@fontsource/inter/index.css'];
fs.writeFileSync(path.join(out, 'LICENSES.txt'), licences(held, here));

// Ten megabytes of text are two when packed, and every browser unpacks them: only the packed file is kept.
const script = path.join(out, 'assets/main.js');
fs.writeFileSync(`${script}.gz`, gzipSync(fs.readFileSync(script), { level: 9 }));
fs.rmSync(script);
fs.rmSync(target, { recursive: true, force: true });
fs.renameSync(out, target);
console.log(`the viewer is in ${path.relative(process.cwd(), target) || '.'}`);
