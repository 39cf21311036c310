// A map to wander in: a canvas for the items, a card for the one under the pointer, a list of classes to switch on and
// off. `fill` writes an item's card; `open`, if given, is what a click on an item does; `picture`, if given, returns an
// image of an item once it is loaded, and calls `redraw` when it is.
const wander = (place, data, { fill, open, picture }) => {
  const stage = place.querySelector(".stage"), canvas = place.querySelector("canvas"), card = place.querySelector(".card");
  const list = place.querySelector(".map-classes ul"), find = place.querySelector(".map-classes input[type=search]");
  const brush = canvas.getContext("2d");
  const scale = data.scale; // coordinates are whole numbers up to this
  const count = data.x.length;
  const on = data.classes.map(() => true);
  const view = { zoom: 1, x: 0.5, y: 0.5 }; // what is in the middle
  const cell = innerWidth < 600 ? 56 : 72; // pixels, for one picture
  let width = 0, height = 0, hovered = -1, picked = -1, waiting = false, pictures = Boolean(picture);

  // Hues a golden angle apart: neighbours in the list differ, however many there are.
  const colour = (label) => {
    const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark");
    return `hsl(${(label * 137.508) % 360} ${55 + (label % 3) * 12}% ${(dark ? 62 : 44) + (label % 2) * 8}%)`;
  };
  let colours = [];

  const side = () => Math.min(width, height) * 0.94 * view.zoom;
  const toX = (number) => width / 2 + (data.x[number] / scale - view.x) * side();
  const toY = (number) => height / 2 + (data.y[number] / scale - view.y) * side();
  const radius = () => Math.max(1.6, Math.min(7, (count > 2000 ? 2.2 : 3.2) * Math.sqrt(view.zoom)));

  // Items whose pictures do not cover each other, chosen for the whole map at a few nearnesses: moving it exchanges none.
  let spread = { cells: 0, numbers: [] };
  const chosen = () => {
    const cells = 2 ** (Math.floor(2 * Math.log2(side() / cell)) / 2);
    if (spread.cells === cells) return spread.numbers;
    const taken = new Map(), numbers = [];
    const free = (x, y, column, row) => {
      for (let i = column - 1; i <= column + 1; i += 1) for (let j = row - 1; j <= row + 1; j += 1) {
        for (const [otherX, otherY] of taken.get(i * 65536 + j) || []) {
          if (Math.max(Math.abs(otherX - x), Math.abs(otherY - y)) < 0.86) return false;
        }
      }
      return true;
    };
    for (let number = 0; number < count; number += 1) {
      if (!on[data.label[number]]) continue;
      const x = (data.x[number] / scale) * cells, y = (data.y[number] / scale) * cells;
      const column = Math.floor(x) + 1, row = Math.floor(y) + 1, key = column * 65536 + row;
      if (!free(x, y, column, row)) continue;
      taken.set(key, [...(taken.get(key) || []), [x, y]]);
      numbers.push(number);
    }
    spread = { cells, numbers };
    return numbers;
  };

  const framed = (number) => {
    const x = toX(number), y = toY(number);
    if (x < -cell || y < -cell || x > width + cell || y > height + cell) return;
    const image = picture(number, redraw);
    if (!image) return;
    const ratio = image.naturalWidth / image.naturalHeight || 1, longer = cell * 0.8;
    const wide = ratio > 1 ? longer : longer * ratio, tall = ratio > 1 ? longer / ratio : longer;
    const left = x - wide / 2, top = y - tall / 2;
    brush.fillStyle = colours[data.label[number]];
    brush.fillRect(left - 2, top - 2, wide + 4, tall + 4);
    brush.drawImage(image, left, top, wide, tall);
  };

  const draw = () => {
    waiting = false;
    const dense = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * dense)) canvas.width = Math.round(width * dense);
    if (canvas.height !== Math.round(height * dense)) canvas.height = Math.round(height * dense);
    brush.setTransform(dense, 0, 0, dense, 0, 0);
    brush.clearRect(0, 0, width, height);
    const size = radius();
    const dot = (number, larger) => {
      const x = toX(number), y = toY(number);
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) return;
      brush.beginPath();
      brush.arc(x, y, larger ? size + 3 : size, 0, 7);
      brush.fill();
      if (larger) brush.stroke();
    };
    const lit = hovered >= 0 ? data.label[hovered] : picked;
    const layer = (front) => {
      brush.globalAlpha = front || lit < 0 ? 0.85 : 0.18;
      for (let number = 0; number < count; number += 1) {
        const label = data.label[number];
        if (!on[label] || (label === lit) !== front) continue;
        brush.fillStyle = colours[label];
        dot(number, false);
      }
    };
    layer(false);
    if (pictures) for (const number of chosen()) {
      brush.globalAlpha = lit < 0 || data.label[number] === lit ? 1 : 0.3;
      framed(number);
    }
    layer(true);
    if (hovered >= 0) {
      brush.globalAlpha = 1;
      brush.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
      brush.lineWidth = 1.5;
      brush.fillStyle = colours[data.label[hovered]];
      dot(hovered, true);
    }
  };
  const redraw = () => { if (!waiting) { waiting = true; requestAnimationFrame(draw); } };

  const nearest = (x, y, reach) => {
    let best = -1, least = reach * reach;
    for (let number = 0; number < count; number += 1) {
      if (!on[data.label[number]]) continue;
      const across = toX(number) - x, down = toY(number) - y, apart = across * across + down * down;
      if (apart < least) { least = apart; best = number; }
    }
    return best;
  };
  const inTheMiddle = () => nearest(width / 2, height / 2, Infinity);
  const reach = () => (pictures ? cell * 0.4 : Math.max(9, radius() + 4));

  const show = (number) => {
    if (number === hovered) return;
    hovered = number;
    card.hidden = number < 0;
    canvas.classList.toggle("over", number >= 0);
    if (number >= 0) {
      card.querySelector(".class").textContent = data.classes[data.label[number]];
      fill(card, number);
      const x = toX(number), y = toY(number), box = card.getBoundingClientRect();
      card.style.left = `${Math.max(4, x + 16 + box.width > width ? x - 16 - box.width : x + 16)}px`;
      card.style.top = `${Math.max(4, Math.min(height - box.height - 4, y - box.height / 2))}px`;
    }
    redraw();
  };

  const nearer = (factor, x = width / 2, y = height / 2) => {
    const zoom = Math.min(60, Math.max(1, view.zoom * factor)), before = side();
    const atX = view.x + (x - width / 2) / before, atY = view.y + (y - height / 2) / before;
    view.zoom = zoom;
    view.x = atX - (x - width / 2) / side();
    view.y = atY - (y - height / 2) / side();
    if (zoom === 1) { view.x = 0.5; view.y = 0.5; }
    show(-1);
    redraw();
  };

  const fingers = new Map();
  let moved = 0;
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, at(event));
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event), before = fingers.get(event.pointerId);
    if (!before) { show(nearest(x, y, reach())); return; }
    moved += Math.hypot(x - before[0], y - before[1]);
    if (moved < 4) return; // a hand is not that calm
    if (fingers.size === 1) {
      view.x -= (x - before[0]) / side();
      view.y -= (y - before[1]) / side();
      show(-1);
    } else {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const apart = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
      nearer(apart([x, y]) / apart(before), (x + other[0]) / 2, (y + other[1]) / 2);
    }
    fingers.set(event.pointerId, [x, y]);
    redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const down = fingers.delete(event.pointerId);
    if (!down || fingers.size > 0 || moved >= 4) return;
    const before = hovered, tapped = nearest(...at(event), Math.max(22, reach()));
    // The first touch shows what it is, as a pointer does by being there; the next one opens it.
    if (event.pointerType !== "mouse" && tapped !== before) show(tapped);
    else if (open && tapped >= 0 && event.button === 0) open(tapped);
  });
  canvas.addEventListener("pointercancel", (event) => { fingers.delete(event.pointerId); });
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") show(-1); });
  canvas.addEventListener("wheel", (event) => {
    if (view.zoom === 1 && event.deltaY > 0) return; // nothing to go back from: the page scrolls on
    event.preventDefault();
    nearer(Math.exp(-event.deltaY / 300), ...at(event));
  }, { passive: false });
  canvas.addEventListener("dblclick", () => { nearer(0); });
  canvas.addEventListener("keydown", (event) => {
    const step = 0.08 / view.zoom;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (moves[event.key]) {
      view.x += moves[event.key][0];
      view.y += moves[event.key][1];
      show(-1);
      show(inTheMiddle());
      redraw();
    } else if (event.key === "+" || event.key === "-") {
      nearer(event.key === "+" ? 1.4 : 1 / 1.4);
      show(inTheMiddle());
    } else if (event.key === "Enter" && open) {
      const wanted = hovered >= 0 ? hovered : inTheMiddle();
      if (wanted >= 0) open(wanted);
    }
    else return;
    event.preventDefault();
  });

  const boxes = data.classes.map((name, label) => {
    const item = document.createElement("li"), frame = document.createElement("label"), box = document.createElement("input");
    const dot = document.createElement("i"), text = document.createElement("span");
    box.type = "checkbox";
    box.checked = true;
    dot.className = "dot";
    text.textContent = name;
    text.title = name;
    frame.append(box, dot, text);
    item.append(frame);
    box.addEventListener("change", () => { on[label] = box.checked; spread.cells = 0; show(-1); redraw(); });
    frame.addEventListener("pointerenter", () => { picked = label; redraw(); });
    frame.addEventListener("pointerleave", () => { picked = -1; redraw(); });
    return { item, box, dot };
  });
  list.append(...boxes.map((each) => each.item));
  find.addEventListener("input", () => {
    const wanted = find.value.trim().toLowerCase();
    boxes.forEach((each, label) => { each.item.hidden = !data.classes[label].toLowerCase().includes(wanted); });
  });
  place.addEventListener("click", (event) => {
    const what = event.target.dataset.do;
    if (what === "in") nearer(1.6);
    else if (what === "out") nearer(1 / 1.6);
    else if (what === "whole") nearer(0);
    else if (what === "pictures") {
      pictures = !pictures;
      event.target.setAttribute("aria-pressed", String(pictures));
      redraw();
    } else if (what === "all" || what === "none") { // of those that the search shows
      boxes.forEach((each, label) => { if (!each.item.hidden) { on[label] = what === "all"; each.box.checked = on[label]; } });
      spread.cells = 0;
      show(-1);
      redraw();
    }
  });

  const paint = () => {
    colours = data.classes.map((_, label) => colour(label));
    boxes.forEach((each, label) => { each.dot.style.background = colours[label]; });
    redraw();
  };
  document.addEventListener("theme", paint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  new ResizeObserver(() => { width = stage.clientWidth; height = stage.clientHeight; redraw(); }).observe(stage);
  width = stage.clientWidth;
  height = stage.clientHeight;
  paint();
  // The items walk to other places.
  return (x, y) => {
    const from = [[...data.x], [...data.y]], calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const began = performance.now(), lasts = calm ? 1 : 1200;
    const step = (now) => {
      const part = Math.min(1, Math.max(0, (now - began) / lasts)), eased = part * part * (3 - 2 * part);
      for (let number = 0; number < count; number += 1) {
        data.x[number] = from[0][number] + (x[number] - from[0][number]) * eased;
        data.y[number] = from[1][number] + (y[number] - from[1][number]) * eased;
      }
      spread.cells = 0;
      show(-1);
      redraw();
      if (part < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  };
};
