// @ts-check
/** Function definitions that the user has written: read, and checked as far as the page can. */

const NAME = /^[A-Za-z0-9_-]{1,64}$/;
const MOST = 16;
const KNOWN = ['name', 'description', 'parameters', 'answer'];

/** @typedef {{name: string, description: string, parameters: object}} Tool what the language model is told */
/** @typedef {{tool: Tool, answer: unknown}} OwnFunction `answer` undefined: the user is asked for it */

/**
 * @param {string} text JSON: a list of definitions, or one; OpenAI's form will do
 * @param {readonly string[]} [taken] names of the server's own tools
 * @returns {OwnFunction[]}
 * @throws {Error} saying what is wrong
 */
export function readFunctions(text, taken = []) {
  if (!text.trim()) return [];
  const written = parse(text);
  const list = Array.isArray(written) ? written : [written];
  if (list.length > MOST) throw new Error(`At most ${MOST} functions are possible.`);
  const functions = list.map((one, i) => readOne(one, `Function ${i + 1}`));
  const names = functions.map(({ tool }) => tool.name);
  for (const name of names) {
    if (names.indexOf(name) !== names.lastIndexOf(name)) throw new Error(`${name} is defined twice.`);
    if (taken.includes(name)) throw new Error(`${name}: the server has a tool of this name.`);
  }
  return functions;
}

/** @param {string} text */
function parse(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${/** @type {Error} */ (error).message}`);
  }
}

/** @param {any} one @param {string} which @returns {OwnFunction} */
function readOne(one, which) {
  if (!isObject(one)) throw new Error(`${which} is not an object.`);
  const { type, function: inner, ...outer } = one;
  if (type !== undefined && type !== 'function') throw new Error(`${which}: only functions can be tools.`);
  if (inner !== undefined && !isObject(inner)) throw new Error(`${which}: “function” is not an object.`);
  const { name, description = '', parameters = {}, answer, ...rest } = { ...inner, ...outer };
  if (typeof name !== 'string' || !NAME.test(name))
    throw new Error(`${which}: “name” must be 1 to 64 letters, digits, - and _.`);
  if (typeof description !== 'string') throw new Error(`${name}: “description” must be a text.`);
  if (!isObject(parameters)) throw new Error(`${name}: “parameters” must be a JSON schema.`);
  if (parameters.type !== undefined && parameters.type !== 'object')
    throw new Error(`${name}: the type of “parameters” must be “object”.`);
  const [strange] = Object.keys(rest).filter((key) => key !== 'strict');
  if (strange) throw new Error(`${name}: “${strange}” is unknown; allowed are ${KNOWN.join(', ')}.`);
  return { tool: { name, description, parameters }, answer };
}

/** @param {unknown} value @returns {boolean} */
function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** @param {string} text that the user has typed as an answer @returns {unknown} JSON, or the text itself */
export function readAnswer(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text.trim();
  }
}
