"use strict";

// Light and dark: the reader's choice lasts while the page is open, and for as long as the browser lets it.
(() => {
  const root = document.documentElement;
  const kept = (() => { try { return localStorage.getItem("tammes-theme"); } catch { return null; } })();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("tammes-theme", root.dataset.theme); } catch { /* a page from disk may not keep anything */ }
    document.dispatchEvent(new Event("theme"));
  });
})();

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch { // not allowed from disk in every browser: marked, so that one key is enough
      getSelection().selectAllChildren(code);
      button.textContent = "Marked";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// Tables: a click on a heading sorts, a second one turns round.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (head.classList.contains("plain")) return;
    const press = document.createElement("button"); // so that a screen reader says that it can be pressed
    press.type = "button";
    press.append(...head.childNodes);
    head.append(press);
    const sort = () => {
      const numeric = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : numeric;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => {
        const cell = row.cells[column];
        const said = cell.dataset.sort ?? cell.textContent.trim();
        if (!numeric) return said.toLowerCase();
        const number = parseFloat(said);
        return Number.isNaN(number) ? null : number;
      };
      const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
      rows.sort(([one], [other]) => {
        if (one === null || other === null) return (one === null) - (other === null); // what is missing stays last
        const less = numeric ? one - other : one.localeCompare(other, undefined, { numeric: true });
        return down ? -less : less;
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
  });
}
for (const input of document.querySelectorAll("input[data-filters]")) {
  const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}

for (const list of document.querySelectorAll("[role=tablist]")) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const choose = (chosen) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    }
  };
  tabs.forEach((tab, number) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(number + step + tabs.length) % tabs.length];
      choose(next);
      next.focus();
    });
  });
  if (tabs.length) choose(tabs[0]);
}

// The map: a canvas for the points, a card for the one under the pointer, a list of classes to switch on and off.
(() => {
  const place = document.getElementById("map-of-items");
  if (!place) return;
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const stage = place.querySelector(".stage"), canvas = place.querySelector("canvas"), card = place.querySelector(".card");
  const list = place.querySelector(".map-classes ul"), find = place.querySelector(".map-classes input[type=search]");
  const brush = canvas.getContext("2d");
  const scale = data.scale; // coordinates are whole numbers up to this
  const count = data.x.length;
  const on = data.classes.map(() => true);
  const view = { zoom: 1, x: 0.5, y: 0.5 }; // what is in the middle
  let width = 0, height = 0, hovered = -1, picked = -1, waiting = false;

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
    for (const front of [false, true]) {
      brush.globalAlpha = front || lit < 0 ? 0.85 : 0.18;
      for (let number = 0; number < count; number += 1) {
        const label = data.label[number];
        if (!on[label] || (label === lit) !== front) continue;
        brush.fillStyle = colours[label];
        dot(number, false);
      }
    }
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

  const show = (number) => {
    if (number === hovered) return;
    hovered = number;
    card.hidden = number < 0;
    if (number >= 0) {
      const thumb = card.querySelector(".thumb");
      thumb.hidden = !data.sheets.length;
      if (data.sheets.length) {
        const each = data.columns * data.columns, at = number % each, shown = 130;
        thumb.style.backgroundImage = `url("${data.sheets[Math.floor(number / each)]}")`;
        thumb.style.backgroundSize = `${data.columns * shown}px auto`;
        thumb.style.backgroundPosition = `${-(at % data.columns) * shown}px ${-Math.floor(at / data.columns) * shown}px`;
      }
      card.querySelector(".class").textContent = data.classes[data.label[number]];
      card.querySelector(".item").textContent = data.items[number];
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
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, at(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event), before = fingers.get(event.pointerId);
    if (!before) { show(nearest(x, y, Math.max(9, radius() + 4))); return; }
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
  const lift = (event) => {
    const down = fingers.get(event.pointerId);
    fingers.delete(event.pointerId);
    if (down && event.pointerType !== "mouse" && fingers.size === 0) show(nearest(...at(event), 22)); // a tap
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
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
    if (moves[event.key]) { view.x += moves[event.key][0]; view.y += moves[event.key][1]; show(-1); redraw(); }
    else if (event.key === "+") nearer(1.4);
    else if (event.key === "-") nearer(1 / 1.4);
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
    box.addEventListener("change", () => { on[label] = box.checked; show(-1); redraw(); });
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
    else if (what === "all" || what === "none") { // of those that the search shows
      boxes.forEach((each, label) => { if (!each.item.hidden) { on[label] = what === "all"; each.box.checked = on[label]; } });
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
})();
