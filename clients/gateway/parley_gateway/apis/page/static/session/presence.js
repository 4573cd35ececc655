// @ts-check
/**
 * Whether a call could be held here, and with what: asked before anything else is done, and again and again
 * while it could not.
 */
import { Refusal, askAgent, askReadiness, listAgents, listVoices } from './api.js';
import { Backoff } from './backoff.js';

/**
 * `ready`; `down`: the gateway has no server; `loading`: it has one that is not ready; `gone`: the gateway
 * itself does not answer; `locked`: a key is needed, or another one; `limited`: it takes no more requests for
 * now; `asking`: not known yet.
 * @typedef {{state: 'asking' | 'ready' | 'down' | 'loading' | 'gone' | 'locked' | 'limited', detail: string,
 *   retryAt: number}} Known
 * @typedef {import('../talk/settings.js').Offer & {recognizers: string[], language_model: string,
 *   language_models?: string[], demonstration?: boolean, synthesizers: string[]}} Offered
 */

export class Presence {
  /**
   * @param {(known: Known) => void} onChange
   * @param {{readiness: typeof askReadiness, agents: typeof listAgents, agent: typeof askAgent,
   *   voices: typeof listVoices}} [gateway]
   */
  constructor(onChange, gateway = { readiness: askReadiness, agents: listAgents, agent: askAgent, voices: listVoices }) {
    this._onChange = onChange;
    this._gateway = gateway;
    this._backoff = new Backoff();
    /** @type {Known} */
    this.known = { state: 'asking', detail: '', retryAt: 0 };
    /** @type {Offered | null} as it was when the server was asked last; null also of one that does not tell */
    this.offer = null;
    /** @type {import('./api.js').Summary[]} that may be chosen */
    this.agents = [];
    /** Whether the server's own agent may be chosen. */
    this.hasOwn = true;
    /** Whether recorded calls may be read. */
    this.hasCalls = false;
    /** Name of the agent that the user wants; empty: the server's own. */
    this.wanted = '';
    /** @type {string | null} in memory only */
    this.key = null;
    /** Whether a key was ever asked for. */
    this.keyed = false;
    this._timer = 0;
    /** @type {Promise<boolean> | null} */
    this._asking = null;
    globalThis.addEventListener?.('online', () => this.retryNow());
  }

  /** Ask now; while there is no server, again later. @returns {Promise<boolean>} whether a call could be held */
  check() {
    this._asking ??= this._check().finally(() => {
      this._asking = null;
    });
    return this._asking;
  }

  /** @param {string} name of the agent that the offer is to be of; empty: the server's own */
  choose(name) {
    this.wanted = name;
    return this.check();
  }

  /** Do not wait any longer. */
  retryNow() {
    if (this.known.retryAt) void this.check();
  }

  /** A call begins, or the page goes: nothing is asked any more. */
  rest() {
    clearTimeout(this._timer);
    this.known.retryAt = 0;
  }

  async _check() {
    clearTimeout(this._timer);
    try {
      await this._gateway.readiness();
      let name;
      do {
        name = this.wanted;
        await this._ask();
      } while (name !== this.wanted); // another agent was chosen meanwhile
      this._backoff.reset();
      this._tell('ready', '', 0);
      return true;
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this._fail(error);
      return false;
    }
  }

  async _ask() {
    const listed = await this._gateway.agents(this.key).catch(unlessNeeded);
    this.agents = listed?.agents ?? [];
    this.hasOwn = listed?.own ?? true;
    this.hasCalls = listed?.calls ?? false;
    const name = this._chosen();
    const agent = this._gateway.agent(this.key, name);
    const [offer, voices] = await Promise.all([
      name ? agent : agent.catch(unlessNeeded),
      this._gateway.voices(this.key).then(
        (answer) => answer?.data ?? null,
        () => null, // a key that may not speak, or a synthesizer that does not tell
      ),
    ]);
    this.offer = offer && { ...offer, voices: voicesOf(offer.voices, voices) };
  }

  /** @returns {string} the agent that the user wants, or another one where it may not be chosen */
  _chosen() {
    const names = [...(this.hasOwn ? [''] : []), ...this.agents.map(({ name }) => name)];
    return names.includes(this.wanted) ? this.wanted : (names[0] ?? '');
  }

  /** @param {Refusal} refusal */
  _fail({ status, code, reason, message, retryAfterMs }) {
    if (status === 401 || status === 403) {
      this.keyed = true;
      const refused = status === 403 ? 'This key may not talk to the agent' : 'This key was not accepted';
      this._tell('locked', this.key ? `${refused}: ${message}.` : '', 0);
      return;
    }
    const waitMs = this._backoff.next(retryAfterMs);
    // Other refusals than that of a gateway without a ready server say nothing of servers.
    const servers = reason === 'no_server' ? 'down' : 'loading';
    const state = status === 429 ? 'limited' : code === 'no_server_ready' ? servers : 'gone';
    const detail = status === 429 || reason ? message : '';
    this._tell(state, detail, performance.now() + waitMs);
    this._timer = setTimeout(() => void this.check(), waitMs);
  }

  /** @param {Known['state']} state @param {string} detail @param {number} retryAt */
  _tell(state, detail, retryAt) {
    this.known = { state, detail, retryAt };
    this._onChange(this.known);
  }
}

/**
 * A server that is ready and does not tell what it has, as an older one, can be called all the same.
 * @param {unknown} error @returns {null}
 */
function unlessNeeded(error) {
  const isTold = error instanceof Refusal && error.status >= 400 && error.code !== 'no_server_ready';
  if (isTold && ![401, 403, 429].includes(error.status)) return null;
  throw error;
}

/**
 * What a session may name, with all that is known of it.
 * @param {readonly string[] | null} names that the agent tells
 * @param {import('./api.js').Voice[] | null} listed voices of single stages, which may be others
 * @returns {import('./api.js').Voice[] | null}
 */
function voicesOf(names, listed) {
  if (names === null) return listed;
  return names.map((id) => listed?.find((voice) => voice.id === id) ?? { id });
}
