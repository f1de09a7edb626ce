"use strict";
/* unpack(id) resolves to the bytes (Uint8Array) of an element that Python's `pack` filled. */

async function unpack(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) =>
    c.charCodeAt(0),
  );
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
