// @ts-check
/** Colours that others choose, made readable. */

/** Contrast of text that WCAG 2 asks for, level AA, and a little more for rounding. */
const CONTRAST = 4.6;
const STEPS = 20;

/**
 * The colour itself, or the nearest one towards black or white that can be read.
 * @param {string} colour `#rrggbb`; anything else is none
 * @param {readonly string[]} papers what it is written on
 * @returns {string} empty: there is none
 */
export function readable(colour, papers) {
  if (!/^#[0-9a-f]{6}$/i.test(colour)) return '';
  const parts = partsOf(colour);
  const end = lightness(partsOf(papers[0])) > 0.5 ? 0 : 255;
  for (let step = 0; step <= STEPS; step += 1) {
    const mixed = parts.map((part) => Math.round(part + ((end - part) * step) / STEPS));
    if (papers.every((paper) => contrast(mixed, partsOf(paper)) >= CONTRAST)) return written(mixed);
  }
  return '';
}

/** @param {string} colour @returns {number[]} red, green and blue, 0 to 255 */
function partsOf(colour) {
  return [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
}

/** @param {number[]} parts @returns {string} */
function written(parts) {
  return `#${parts.map((part) => part.toString(16).padStart(2, '0')).join('')}`;
}

/** @param {number[]} one @param {number[]} other @returns {number} 1 to 21 */
function contrast(one, other) {
  const [low, high] = [lightness(one), lightness(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** @param {number[]} parts @returns {number} relative luminance, 0 to 1 */
function lightness(parts) {
  const [red, green, blue] = parts.map((part) => {
    const value = part / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
