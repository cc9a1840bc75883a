// Calls of the server: errors that say what happened, the key, and whether the server answers.

import { isName } from "./dom.js";

const TIMEOUT = 20_000;
const BEAT = 3_000; // between two looks at a server that is idle
const RETRY = 1_000; // between two looks at one that does not answer

/** Dispatches "online", "offline", "key" (a key is needed) and "model" (another one took over). */
export const server = new EventTarget();
export let online = true;
let version = null;
let description = null;
let asked = null;

export class ApiError extends Error {
  constructor(status, code, text, field) {
    super(text);
    Object.assign(this, { status, code, field });
  }
}

const tell = (what, detail) => server.dispatchEvent(new CustomEvent(what, { detail }));

function setOnline(now) {
  if (now === online) return;
  online = now;
  tell(now ? "online" : "offline");
}

/** Return the JSON that the server answers; waits for the key if one is needed. */
export async function call(path, { body, signal } = {}) {
  const answer = await request(path, body, signal);
  if (answer.status === 401) {
    await keyGiven();
    return call(path, { body, signal });
  }
  const found = await answer.json().catch(() => null);
  signal?.throwIfAborted();
  if (!answer.ok) throw failure(answer, found);
  if (!found) throw new ApiError(502, "unexpected", "The answer broke off; try again.");
  if (found.model) noteVersion(found.model);
  return found;
}

async function request(path, body, signal) {
  const headers = { Accept: "application/json" };
  const key = sessionStorage.getItem("fewfold-key");
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const limit = AbortSignal.timeout(TIMEOUT);
  try {
    const answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers, body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
    setOnline(true);
    return answer;
  } catch (error) {
    if (signal?.aborted) throw error;
    if (limit.aborted) {
      throw new ApiError(504, "timeout", `No answer within ${TIMEOUT / 1000} seconds; try again.`);
    }
    setOnline(false);
    throw new ApiError(0, "offline", "The server does not answer. The page tries again by itself.");
  }
}

function failure(answer, found) {
  const { code = "unexpected", message: text, field = null } = found?.error ?? {};
  const wait = answer.headers.get("Retry-After");
  const more = answer.status === 429 && wait ? ` Try again in ${wait} s.` : "";
  return new ApiError(answer.status, code, (text ?? `The server answered ${answer.status}.`) + more, field);
}

/** Resolve when a key has been typed; all calls that wait share one question. */
function keyGiven() {
  asked ??= new Promise((resolve) => tell("key", {
    wrong: sessionStorage.getItem("fewfold-key") !== null,
    give(key) {
      sessionStorage.setItem("fewfold-key", key);
      asked = null;
      resolve();
    },
  }));
  return asked;
}

function noteVersion(found) {
  if (found === version) return;
  const first = version === null;
  version = found;
  if (first) return;
  description = null;
  known.clear();
  tell("model", found);
}

/** Return the description of the model, asked for once for each version. */
export function model() {
  description ??= call("/v1/model").catch((error) => {
    description = null;
    throw error;
  });
  return description;
}

/** Items by id that answers told of, so that they can be shown by their names. */
export const known = new Map();
export const note = (entry) => known.set(String(entry.item), entry);

/** Ask for those of these items that are not known yet; without names there is nothing to ask. */
export async function learn(ids) {
  if (!Object.keys((await model()).attributes).some(isName)) return;
  const missing = ids.filter((id) => !known.has(id)).slice(0, 100);
  await Promise.all(missing.map((id) => call(itemPath(id)).then(note, () => null)));
}

export const itemPath = (id, more = "") => `/v1/items/${encodeURIComponent(id)}${more}`;
export const userPath = (id) => `/v1/users/${encodeURIComponent(id)}`;

/** Look at the server from time to time, so that a stop and a return are noticed while idle. */
export async function watch() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, online ? BEAT : RETRY));
    if (document.hidden) continue;
    try {
      const answer = await fetch("/v1/health/ready", { signal: AbortSignal.timeout(RETRY) });
      setOnline(answer.ok);
    } catch {
      setOnline(false);
    }
  }
}
