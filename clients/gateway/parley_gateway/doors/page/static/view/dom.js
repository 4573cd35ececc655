// @ts-check
/** Small helpers for the document. */

/** @param {string} id @returns {any} the element; the page always has it */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * @param {string} tag @param {string} [className] @param {string | Node | (string | Node)[]} [content]
 * @returns {HTMLElement}
 */
export function make(tag, className = '', content = []) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...(Array.isArray(content) ? content : [content]));
  return element;
}
