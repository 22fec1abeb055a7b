// inferd_deploy.mjs - objects of other projects' kinds, checked against the schemas that npm packages carry.
// Reads a JSON array of Kubernetes objects from stdin; prints one line for each of the kinds it knows:
// {"kind", "name", "error": null or text}. Run by deploy.py, beside its node_modules.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const KINDS = {
  ScaledObject: "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject",
  ServiceMonitor: "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor",
};
const base = process.argv[2]; // folder with node_modules
for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  if (!(object.kind in KINDS)) continue;
  const [scope, name, ...rest] = KINDS[object.kind].split("/");
  const file = `${base}/node_modules/${scope}/${name}/${rest.join("/")}.js`;
  const Kind = (await import(pathToFileURL(file)))[object.kind];
  let error = null;
  try {
    new Kind(object).validate();
  } catch (e) {
    error = e.message;
  }
  console.log(JSON.stringify({ kind: object.kind, name: object.metadata.name, error }));
}
