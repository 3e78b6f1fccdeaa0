// Bundles src/ into one HTML file that requests nothing: node build.mjs OUT.html
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const folder = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(folder, "..", "build", "report", "template.html");

const bundled = await build({
  entryPoints: [join(folder, "src", "main.ts")],
  bundle: true,
  minify: true,
  format: "iife",
  target: ["chrome123", "firefox120", "safari17.5"],
  charset: "ascii",
  banner: { js: `/*! uPlot\n${readFileSync(join(folder, "node_modules", "uplot", "LICENSE"), "utf8").trim()}\n*/` },
  loader: { ".css": "css" },
  outdir: "out",
  write: false,
});
const text = (end) => bundled.outputFiles.find((file) => file.path.endsWith(end)).text.trim();
const script = text(".js");
const style = text(".css");
if (/<\/script|<!--/i.test(script) || /<\/style/i.test(style)) throw new Error("the bundle would end its own block");

// Only this very script runs, whatever a graph's names are.
const hash = createHash("sha256").update(script).digest("base64");
const page = readFileSync(join(folder, "src", "page.html"), "utf8")
  .replace("{{script-hash}}", () => hash)
  .replace("{{style}}", () => style)
  .replace("{{script}}", () => script);
mkdirSync(dirname(out), { recursive: true });
writeFileSync(out, page);
console.log(`${out}: ${page.length} characters`);
