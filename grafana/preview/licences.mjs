// The licences of what a bundle holds, as one text: whoever hands the bundle on hands on these.
import fs from 'node:fs';
import path from 'node:path';

const PACKAGE = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//;
const REFUSED = /GPL|SSPL|BUSL|proprietary/i;

/** Return the text for the packages that hold these files; throw where one may not be handed on under Apache-2.0. */
export function licences(files, root) {
  const folders = [...new Set(files.map((file) => PACKAGE.exec(file)?.[1]).filter(Boolean))].sort();
  return folders
    .map((folder) => {
      const { name, version, license } = JSON.parse(fs.readFileSync(path.join(root, folder, 'package.json'), 'utf8'));
      const texts = fs
        .readdirSync(path.join(root, folder))
        .filter((file) => /^(licen[cs]e|notice)/i.test(file))
        .map((file) => fs.readFileSync(path.join(root, folder, file), 'utf8').trim());
      if (REFUSED.test(license ?? '') || (!license && !texts.length)) {
        throw new Error(`${name} ${version}: licence ${license ?? 'unknown'}`);
      }
      return [`${name} ${version}${license ? ` (${license})` : ''}`, ...new Set(texts)].join('\n\n');
    })
    .join(`\n\n${'-'.repeat(72)}\n\n`);
}
