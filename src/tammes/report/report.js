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

{
  const place = document.getElementById("map-of-items");
  if (place) {
    const data = JSON.parse(document.getElementById("map-data").textContent);
    const shown = 130; // pixels
    wander(place, data, {
      fill: (card, number) => {
        const thumb = card.querySelector(".thumb");
        thumb.hidden = !data.sheets.length;
        if (data.sheets.length) {
          const each = data.columns * data.columns, at = number % each;
          thumb.style.backgroundImage = `url("${data.sheets[Math.floor(number / each)]}")`;
          thumb.style.backgroundSize = `${data.columns * shown}px auto`;
          thumb.style.backgroundPosition = `${-(at % data.columns) * shown}px ${-Math.floor(at / data.columns) * shown}px`;
        }
        card.querySelector(".item").textContent = data.items[number];
      },
    });
  }
}
