// Checks custom resources against the schemas of their makers. Standard input: a JSON list of objects; standard
// output: a list of messages for each.
//
// The validators do not refuse unknown fields. They read every field that they know, though, so a field that none of
// them has read is unknown; a proxy records what is read.

import { readFileSync } from "node:fs";

const PACKAGES = {
  "external-secrets.io": "@kubernetes-models/external-secrets",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
  "karpenter.k8s.aws": "@kubernetes-models/karpenter",
  "karpenter.sh": "@kubernetes-models/karpenter",
  "keda.sh": "@kubernetes-models/keda",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
};

// Its fields belong to Kubernetes' own schemas.
const SKIPPED = new Set(["/metadata"]);

function watch(value, path, unread) {
  if (value === null || typeof value !== "object") return value;
  const inner = {};
  for (const key of Object.keys(value)) {
    const place = `${path}/${key}`;
    if (!Array.isArray(value) && !SKIPPED.has(place)) unread.add(place);
    inner[key] = SKIPPED.has(place) ? value[key] : watch(value[key], place, unread);
  }
  const target = Array.isArray(value) ? Object.values(inner) : inner;
  return new Proxy(target, {
    get(object, key) {
      unread.delete(`${path}/${String(key)}`);
      return object[key];
    },
    // Maps of any keys are gone through as a whole.
    ownKeys(object) {
      for (const key of Object.keys(object)) unread.delete(`${path}/${key}`);
      return Reflect.ownKeys(object);
    },
  });
}

async function check(object) {
  const [group, version] = object.apiVersion.split("/");
  if (!(group in PACKAGES)) return [`no schemas of ${object.apiVersion}`];
  const models = await import(`${PACKAGES[group]}/${group}/${version}`);
  const Model = models[object.kind];
  if (Model === undefined) return [`no schema of ${object.kind} in ${object.apiVersion}`];
  try {
    new Model(structuredClone(object)).validate();
  } catch (error) {
    return [error.message];
  }
  const unread = new Set();
  const copy = new Model({ ...object });
  for (const key of Object.keys(object)) copy[key] = watch(object[key], `/${key}`, unread);
  copy.validate();
  return [...unread].map((place) => `unknown field ${place}`);
}

const objects = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(await Promise.all(objects.map(check))));
