// @ts-check
/** The gateway's REST side. */

const DEADLINE_MS = 15000;
const AUDIO_MS = 600000;

/** Why the gateway, or the way to it, has said no. */
export class Refusal extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, code?: string, reason?: string, retryable?: boolean,
   *   retryAfterMs?: number}} facts `reason`: of a gateway that is not ready, `no_server` or `not_ready`
   */
  constructor(message, { status = 0, code = 'unreachable', reason = '', retryable = false, retryAfterMs = 0 }) {
    super(message);
    this.status = status;
    this.code = code;
    this.reason = reason;
    this.retryable = retryable;
    this.retryAfterMs = retryAfterMs;
  }
}

/** @param {string} path @returns {URL} below the page's own address */
export function address(path) {
  return new URL(path, document.baseURI);
}

/**
 * @param {string} path
 * @param {{method?: string, body?: unknown, key?: string | null, signal?: AbortSignal, isFile?: boolean}} options
 * @returns {Promise<any>} the answer's JSON, or a file
 */
async function ask(path, { method = 'GET', body, key, signal, isFile = false }) {
  const limit = AbortSignal.timeout(isFile ? AUDIO_MS : DEADLINE_MS);
  /** @type {Record<string, string>} */
  const headers = body === undefined ? {} : { 'Content-Type': 'application/json' };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(address(path), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: 'no-store',
      credentials: 'omit',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal('The gateway cannot be reached.', { retryable: true });
  }
  if (isFile && response.ok) return response.blob();
  const content = await response.json().catch(() => null);
  if (response.ok) return content;
  const told = content?.error ?? {};
  const retryAfterMs = 1000 * (Number(response.headers.get('Retry-After')) || 0);
  throw new Refusal(told.message ?? `The gateway answered with status ${response.status}.`, {
    status: response.status,
    code: told.code ?? 'unknown',
    reason: content?.reason ?? '',
    retryable: told.retryable ?? response.status >= 500,
    retryAfterMs,
  });
}

/** @typedef {{session_id: string, token: string | null}} Session */

/**
 * Create a session. The key leaves the page only here; the stream gets the short-lived token of the answer.
 * @param {object} options how the session is held
 * @param {string | null} key
 * @param {AbortSignal} [signal]
 * @returns {Promise<Session>}
 */
export function createSession(options, key, signal) {
  return ask('v1/sessions', { method: 'POST', body: options, key, signal });
}

/** @param {Session} session @returns {Promise<{state: string, reason: string, message?: string}>} */
export function sessionStatus({ session_id: id, token }) {
  return ask(`v1/sessions/${encodeURIComponent(id)}/status`, { key: token });
}

/** Whether a call would be taken. A refusal says that it would not. */
export function askReadiness() {
  return ask('readyz', {});
}

/**
 * @typedef {{name: string, title: string, language: string, voice: string, colour: string}} Summary
 */

/**
 * @typedef {{recognizers: string[], language_model: string, language_models?: string[],
 *   demonstration?: boolean, synthesizers: string[], languages: string[],
 *   voices: string[] | null, tools: string[], examples: string[],
 *   default_prompt?: boolean, agent?: Summary | null}} Agent
 */

/**
 * What an agent has.
 * @param {string | null} key @param {string} [name] empty: the server's own agent
 * @returns {Promise<Agent>}
 */
export function askAgent(key, name = '') {
  return ask(name ? `v1/agent?name=${encodeURIComponent(name)}` : 'v1/agent', { key });
}

/** @param {string | null} key @returns {Promise<{agents: Summary[], own: boolean, calls?: boolean}>} */
export function listAgents(key) {
  return ask('v1/agents', { key });
}

/**
 * @typedef {{id: string, name?: string, description?: string | null, language?: string,
 *   languages?: string[]}} Voice
 */

/** @param {string | null} key @returns {Promise<{data: Voice[]}>} */
export function listVoices(key) {
  return ask('v1/audio/voices', { key });
}

/**
 * Recorded calls: a list, one of them, or its audio.
 * @param {string} path behind `v1/calls` @param {string | null} key
 * @param {{method?: string, isFile?: boolean}} [options] @returns {Promise<any>}
 */
export function askCalls(path, key, options = {}) {
  return ask(`v1/calls${path}`, { ...options, key });
}
