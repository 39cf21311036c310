"use strict";

// An image to search with: dropped, pasted, chosen or taken. The server answers with an id, and the id is an address.
{
  const waiting = document.querySelector(".waiting"), trouble = document.querySelector(".trouble");
  const most = { bytes: Number(document.body.dataset.mostBytes), pixels: Number(document.body.dataset.mostPixels) };

  const complain = (text) => {
    waiting.hidden = true;
    trouble.querySelector("p").textContent = text;
    trouble.hidden = false;
  };

  // What the server would refuse for its size is made smaller here.
  const fitting = async (file) => {
    let image;
    try { image = await createImageBitmap(file); } catch { return file; } // not known to this browser: the server decides
    const pixels = image.width * image.height;
    if (pixels <= most.pixels && file.size < most.bytes * 0.95) { image.close(); return file; }
    const scale = Math.min(1, Math.sqrt(Math.min(most.pixels, 12e6) / pixels));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.floor(image.width * scale));
    canvas.height = Math.max(1, Math.floor(image.height * scale));
    const brush = canvas.getContext("2d");
    brush.fillStyle = "white"; // what is transparent, as the server has it
    brush.fillRect(0, 0, canvas.width, canvas.height);
    brush.drawImage(image, 0, 0, canvas.width, canvas.height);
    image.close();
    return new Promise((done) => { canvas.toBlob((made) => done(made || file), "image/jpeg", 0.92); });
  };

  const search = async (file) => {
    trouble.hidden = true;
    const shown = waiting.querySelector("img");
    shown.src = URL.createObjectURL(file);
    waiting.hidden = false;
    const form = new FormData();
    try {
      form.append("image", await fitting(file), "picture");
      const answer = await fetch("/api/search?k=1", { method: "POST", body: form });
      const said = await answer.json();
      if (!answer.ok) { complain(`Sorry: ${said.message}`); return; }
      const here = new URLSearchParams(location.search), kept = new URLSearchParams();
      if (document.querySelector(".results") && here.has("k")) kept.set("k", here.get("k"));
      location.assign(`/picture/${said.query.id}${kept.size ? `?${kept}` : ""}`);
    } catch {
      complain("Sorry: the server does not answer. Is it still running?");
    } finally {
      URL.revokeObjectURL(shown.src);
    }
  };
  // Coming back, the page may be as it was left.
  addEventListener("pageshow", () => { if (waiting) waiting.hidden = true; });

  if (waiting) {
    trouble.querySelector("button").addEventListener("click", () => { trouble.hidden = true; });

    for (const input of document.querySelectorAll(".chooser input[type=file]")) {
      input.addEventListener("change", () => { if (input.files.length) search(input.files[0]); });
    }

    const veil = document.querySelector(".dropping");
    const holdsFile = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
    addEventListener("dragenter", (event) => { if (holdsFile(event)) veil.hidden = false; });
    addEventListener("dragover", (event) => { if (holdsFile(event)) event.preventDefault(); });
    veil.addEventListener("dragleave", () => { veil.hidden = true; });
    addEventListener("drop", (event) => {
      veil.hidden = true;
      if (!holdsFile(event)) return;
      event.preventDefault();
      const files = [...event.dataTransfer.files];
      if (files.length) search(files.find((file) => file.type.startsWith("image/")) || files[0]);
    });

    addEventListener("paste", (event) => {
      const item = [...event.clipboardData.items].find((each) => each.kind === "file");
      if (!item) return;
      event.preventDefault();
      search(item.getAsFile());
    });

    // The camera: in a window of its own where the browser lets a page see it, else by the telephone's own way.
    const dialog = document.getElementById("camera"), video = dialog.querySelector("video");
    let stream = null;
    const close = () => {
      if (stream) for (const track of stream.getTracks()) track.stop();
      stream = null;
      video.srcObject = null;
      dialog.close();
    };
    const take = async () => {
      try {
        stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
      } catch {
        if (navigator.mediaDevices) { complain("There is no camera that this page may use."); return; }
        const input = document.createElement("input");
        input.type = "file";
        input.accept = "image/*";
        input.capture = "environment";
        input.addEventListener("change", () => { if (input.files.length) search(input.files[0]); });
        input.click();
        return;
      }
      video.srcObject = stream;
      dialog.showModal();
    };
    dialog.addEventListener("cancel", close);
    dialog.addEventListener("click", (event) => {
      const what = event.target.dataset.camera;
      if (what === "cancel") close();
      if (what !== "take" || !video.videoWidth) return;
      const canvas = document.createElement("canvas");
      canvas.width = video.videoWidth;
      canvas.height = video.videoHeight;
      canvas.getContext("2d").drawImage(video, 0, 0);
      canvas.toBlob((made) => { close(); if (made) search(made); }, "image/jpeg", 0.92);
    });
    for (const button of document.querySelectorAll("[data-take]")) button.addEventListener("click", take);
  }
}

// A file that is gone, or that browsers do not show: its thumbnail instead.
for (const image of document.querySelectorAll("img[data-instead]")) {
  const instead = () => { image.src = image.dataset.instead; image.closest("a")?.removeAttribute("href"); };
  image.addEventListener("error", instead, { once: true });
  if (image.complete && !image.naturalWidth) instead();
}

// The filter: a class that is chosen from the list, or another number, is shown at once.
for (const form of document.querySelectorAll("form.narrow")) {
  const names = form.querySelector("datalist");
  const known = (text) => names && [...names.options].some((option) => option.value === text);
  for (const field of form.querySelectorAll("input, select")) {
    field.addEventListener("change", () => { // what is half typed waits for Enter or the button
      if (field.tagName === "SELECT" || field.value === "" || known(field.value)) form.requestSubmit();
    });
  }
  if (names && "more" in names.dataset) {
    let asking = null;
    form.querySelector("input[type=search]").addEventListener("input", (event) => {
      clearTimeout(asking);
      asking = setTimeout(async () => {
        const answer = await fetch(`/api/classes?limit=50&q=${encodeURIComponent(event.target.value.slice(0, 200))}`);
        if (!answer.ok) return;
        const found = (await answer.json()).classes;
        names.replaceChildren(...found.map(({ label }) => { const each = document.createElement("option"); each.value = label; return each; }));
      }, 200);
    });
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = new URLSearchParams(new FormData(form));
    for (const [name, value] of [...asked]) if (value === "") asked.delete(name); // not worth a word in the address
    location.assign(`${form.getAttribute("action")}${asked.size ? `?${asked}` : ""}`);
  });
}

for (const button of document.querySelectorAll("[data-share], .copy")) {
  const before = button.textContent;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code ? code.textContent : location.href);
      button.textContent = "Copied";
    } catch { // only over https or on this machine: marked, or shown, so that one key is enough
      if (code) getSelection().selectAllChildren(code);
      else prompt("The address:", location.href);
    }
    setTimeout(() => { button.textContent = before; }, 1500);
  });
}

// Arrows walk from card to card as they stand on the page.
{
  const cards = [...document.querySelectorAll("#found a")];
  const step = (from, key) => {
    const here = cards[from].getBoundingClientRect();
    if (key === "ArrowRight") return from + 1;
    if (key === "ArrowLeft") return from - 1;
    const down = key === "ArrowDown";
    let best = -1, least = Infinity;
    cards.forEach((card, number) => {
      const there = card.getBoundingClientRect();
      const apart = down ? there.top - here.top : here.top - there.top;
      if (apart < here.height / 2) return;
      const cost = apart * 10 + Math.abs(there.left - here.left);
      if (cost < least) { least = cost; best = number; }
    });
    return best;
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, canvas, dialog")) return;
    if (event.key === "/") {
      const field = document.querySelector("form.narrow input[type=search]");
      if (field) { event.preventDefault(); field.focus(); field.select(); }
      return;
    }
    if (!event.key.startsWith("Arrow") || !cards.length) return;
    const from = cards.indexOf(document.activeElement);
    if (from < 0 && !["ArrowRight", "ArrowDown"].includes(event.key)) return;
    const to = from < 0 ? 0 : step(from, event.key);
    if (!cards[to]) return;
    if (from < 0 && event.key === "ArrowDown" && document.activeElement !== document.body) return;
    event.preventDefault();
    cards[to].focus();
  });
}
