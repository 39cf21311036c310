"use strict";

// The map of the gallery: by its main directions at once, then the images walk to where t-SNE puts them.
(async () => {
  const place = document.getElementById("map"), state = document.getElementById("map-state");
  const ask = async () => {
    const answer = await fetch("/api/map");
    if (!answer.ok) throw new Error((await answer.json()).message);
    return answer.json();
  };
  const tell = (map) => {
    const count = `${map.ids.length.toLocaleString("en")} ${place.dataset.word}`;
    state.textContent = map.working ? `${count}, a better map is being made …` : count;
  };
  let data;
  try { data = await ask(); } catch (error) { state.textContent = `Sorry: ${error.message}`; return; }
  data.classes = data.classes.map((name) => name || "without a class");
  tell(data);

  const plain = "plain" in place.dataset; // vectors, which have no images
  const address = (number) => `/api/items/${data.ids[number]}/thumbnail?v=${data.marks[number]}`;
  const images = new Map();
  const picture = (number, redraw) => {
    let image = images.get(number);
    if (!image) {
      if (images.size > 1500) images.delete(images.keys().next().value); // the browser keeps the files
      image = new Image();
      image.addEventListener("load", redraw);
      image.src = address(number);
      images.set(number, image);
    }
    return image.complete && image.naturalWidth ? image : null;
  };
  const move = wander(place, data, {
    fill: (card, number) => {
      const image = card.querySelector("img");
      if (plain) { image?.remove(); return; }
      image.addEventListener("load", () => { image.className = image.naturalWidth <= 64 ? "tiny" : ""; }, { once: true });
      image.src = address(number);
    },
    open: (number) => { location.assign(`/item/${data.ids[number]}`); },
    picture: plain ? undefined : picture,
  });

  let next = data;
  while (next.working) {
    await new Promise((done) => { setTimeout(done, 4000); });
    try { next = await ask(); } catch { return; }
    tell(next);
    if (next.ids.join() !== data.ids.join()) { location.reload(); return; } // the gallery has changed
    if (next.way !== data.way) { data.way = next.way; move(next.x, next.y); }
  }
})();
