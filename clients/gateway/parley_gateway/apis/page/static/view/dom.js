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

/** Screen readers repeat what is written again. @param {HTMLElement} element @param {string} text */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {string} text @param {HTMLElement} button that says for a while that it was done */
export async function copy(text, button) {
  const label = button.dataset.label ?? button.textContent ?? '';
  button.dataset.label = label;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Not allowed';
  }
  setTimeout(() => {
    button.textContent = label;
  }, 1500);
}

/** Let the user keep a file. @param {string} name @param {BlobPart[]} parts @param {string} type */
export function download(name, parts, type) {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  // The browser has taken hold of it by then.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
