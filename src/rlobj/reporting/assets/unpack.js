"use strict";
/* unpack(id) resolves to the bytes (Uint8Array) of an element that Python's `pack` filled. */

async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const packed = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
