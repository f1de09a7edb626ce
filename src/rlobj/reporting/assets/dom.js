"use strict";
/* What the scripts of all pages share. Texts are only set as text: nothing in them becomes markup. */

const byId = (id) => document.getElementById(id);

/* An element; a function among the attributes receives the event of its name. */
function make(tag, attributes = {}, ...children) {
  const space = tag === "svg" || tag === "polyline" ? "2000/svg" : "1999/xhtml";
  const element = document.createElementNS(`http://www.w3.org/${space}`, tag);
  for (const [name, value] of Object.entries(attributes))
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/* A colour of the style sheet as it is now, in the light or in the dark. */
function css(name) {
  const probe = make("i", { style: `color: var(${name})` });
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
