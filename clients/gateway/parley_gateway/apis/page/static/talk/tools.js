// @ts-check
/**
 * Three tools to try the agent with; they run in the page. The weather is made up: it is computed from the
 * names, so that the same question always has the same answer; the timer only says that it agrees. The time
 * is the true one.
 */

const SKIES = ['sunny', 'cloudy', 'rainy', 'windy', 'foggy', 'snowy'];
/** @type {Record<string, string>} */
const ZONES = {
  amsterdam: 'Europe/Amsterdam',
  athens: 'Europe/Athens',
  berlin: 'Europe/Berlin',
  boston: 'America/New_York',
  cairo: 'Africa/Cairo',
  chicago: 'America/Chicago',
  dallas: 'America/Chicago',
  delhi: 'Asia/Kolkata',
  denver: 'America/Denver',
  dublin: 'Europe/Dublin',
  geneva: 'Europe/Zurich',
  havana: 'America/Havana',
  helsinki: 'Europe/Helsinki',
  lima: 'America/Lima',
  lisbon: 'Europe/Lisbon',
  london: 'Europe/London',
  madrid: 'Europe/Madrid',
  miami: 'America/New_York',
  milan: 'Europe/Rome',
  nairobi: 'Africa/Nairobi',
  'new york': 'America/New_York',
  oslo: 'Europe/Oslo',
  paris: 'Europe/Paris',
  prague: 'Europe/Prague',
  rome: 'Europe/Rome',
  'san francisco': 'America/Los_Angeles',
  seattle: 'America/Los_Angeles',
  seoul: 'Asia/Seoul',
  stockholm: 'Europe/Stockholm',
  sydney: 'Australia/Sydney',
  tokyo: 'Asia/Tokyo',
  toronto: 'America/Toronto',
  vienna: 'Europe/Vienna',
  warsaw: 'Europe/Warsaw',
};

const text = (/** @type {string} */ description) => ({ type: 'string', description });

/** What the language model is told. */
export const DEMO_TOOLS = [
  {
    name: 'get_weather',
    description: 'Get the weather in a city.',
    parameters: {
      type: 'object',
      properties: { city: text('The name of the city.'), day: text('The day, if it is not now.') },
      required: ['city'],
    },
  },
  {
    name: 'get_time',
    description: 'Get the time in a city.',
    parameters: { type: 'object', properties: { city: text('The name of the city.') }, required: ['city'] },
  },
  {
    name: 'set_timer',
    description: 'Start a timer.',
    parameters: {
      type: 'object',
      properties: {
        minutes: { type: 'integer', description: 'How many minutes.' },
        label: text('What the timer is for.'),
      },
      required: ['minutes'],
    },
  },
];

/** @type {Record<string, (given: any) => unknown>} */
const FUNCTIONS = {
  async get_weather({ city, day }) {
    const name = `${String(city).toLowerCase()}/${String(day ?? 'now').toLowerCase()}`;
    const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(name)));
    const sky = SKIES[digest[0] % SKIES.length];
    return { temperature: sky === 'snowy' ? -(digest[1] % 9) : 4 + (digest[1] % 27), sky };
  },
  get_time({ city }) {
    const timeZone = ZONES[String(city).toLowerCase()];
    if (!timeZone) throw new Error('unknown city');
    return {
      time: new Intl.DateTimeFormat('en-GB', { timeZone, hour: '2-digit', minute: '2-digit' }).format(),
    };
  },
  set_timer({ minutes }) {
    if (!(minutes > 0 && minutes <= 24 * 60)) throw new Error('a timer runs for 1 to 1440 minutes');
    return { ok: true };
  },
};

/** What is said beside the results of those whose results are not true. @type {Record<string, string>} */
export const MADE_UP = {
  get_weather: 'demo tool: the weather is made up',
  set_timer: 'demo tool: no timer runs',
};

/**
 * Run a tool; every failure is an answer too.
 * @param {string} name @param {object} given
 * @returns {Promise<{output: unknown, is_error: boolean}>}
 */
export async function runTool(name, given) {
  try {
    if (!Object.hasOwn(FUNCTIONS, name)) throw new Error('there is no such tool');
    return { output: await FUNCTIONS[name](given), is_error: false };
  } catch (error) {
    return { output: { error: /** @type {Error} */ (error).message }, is_error: true };
  }
}
