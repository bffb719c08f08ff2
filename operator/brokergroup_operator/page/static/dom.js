// Building and renewing elements. Text is only ever set as text: nothing that a broker or a manifest says becomes markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_NAMES = new Set(["svg", "rect", "line", "title"]);

/** An element with attributes and children; null, false and undefined are left out. */
export function el(name, attributes, ...children) {
  const made = SVG_NAMES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(key, value === true ? "" : String(value));
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) {
      made.append(child.nodeType ? child : document.createTextNode(String(child)));
    }
  }
  return made;
}

/** Make the children of `target` like `children`, touching only what differs: focus, selection and scroll stay. */
export function renew(target, ...children) {
  matchChildren(target, children.flat(Infinity).filter(Boolean));
}

function matchChildren(target, wanted) {
  for (let index = 0; index < wanted.length; index++) {
    const present = target.childNodes[index];
    if (present === undefined) target.append(wanted[index]);
    else match(present, wanted[index]);
  }
  while (target.childNodes.length > wanted.length) target.lastChild.remove();
}

function match(present, wanted) {
  if (present.nodeName !== wanted.nodeName || present.dataset?.key !== wanted.dataset?.key) {
    present.replaceWith(wanted);
    return;
  }
  if (present.nodeType === Node.TEXT_NODE) {
    if (present.data !== wanted.data) present.data = wanted.data;
    return;
  }
  for (const { name } of [...present.attributes]) {
    if (!wanted.hasAttribute(name) && !(name === "open" && present.nodeName === "DETAILS")) present.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (present.getAttribute(name) !== value) present.setAttribute(name, value);
  }
  matchChildren(present, [...wanted.childNodes]);
}
