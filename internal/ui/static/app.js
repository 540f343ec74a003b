// What the pages do beyond plain HTML: live parts, relative times, shortcuts, copying. Every page and form works without it.
"use strict";
(() => {
  const root = document.body.dataset.root;
  document.documentElement.classList.add("script");

  // On narrow screens the navigation scrolls sideways: it begins where this page is.
  const nav = document.querySelector(".bar nav");
  const entry = nav?.querySelector("[aria-current]");
  if (entry) nav.scrollLeft = entry.offsetLeft - nav.offsetLeft - (nav.clientWidth - entry.offsetWidth) / 2;

  // A notice is said once: going back, or loading the page again, does not say it again.
  const here = new URL(location.href);
  if (here.searchParams.has("did")) {
    here.searchParams.delete("did");
    here.searchParams.delete("n");
    history.replaceState(null, "", here);
  }

  // A page with a secret answers a form: loading it again shows what is at data-instead, and does not send the form again.
  const once = document.querySelector("[data-instead]");
  if (once) history.replaceState(null, "", once.dataset.instead);

  // A form is sent once, however often its button is pressed, until the page is shown again.
  document.addEventListener("submit", (e) => {
    if (e.target.method !== "post") return;
    if ("sent" in e.target.dataset) e.preventDefault();
    e.target.dataset.sent = "";
    setTimeout(() => delete e.target.dataset.sent, 10000); // the browser may have been stopped
  });
  addEventListener("pageshow", () => { for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent; });

  // The title of a time gets the local time, too. How long ago it was goes on while the page is open, as distance in format.go has it.
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  const distance = (at) => {
    const past = (Date.now() - at) / 1000;
    const [size, unit] = units.find(([size]) => Math.abs(past) >= size) || [];
    if (Math.abs(past) >= 90 * 86400) return at.toISOString().slice(0, 10);
    if (!unit) return past >= 0 ? "just now" : "in < 1 min";
    const text = `${Math.floor(Math.abs(past) / size)} ${unit}`;
    return past >= 0 ? `${text} ago` : `in ${text}`;
  };
  const sayTimes = (within) => {
    for (const el of within.querySelectorAll("time[datetime]")) {
      const at = new Date(el.dateTime);
      const exact = at.toISOString().replace("T", " ").slice(0, 19);
      el.title = `${exact} UTC · ${at.toLocaleString(undefined, {timeZoneName: "short"})}`;
      const said = "ago" in el.dataset ? el : el.querySelector("[data-ago]");
      const text = said === el ? distance(at) : ` (${distance(at)})`;
      if (said && said.textContent !== text) said.textContent = text;
    }
  };
  setInterval(() => sayTimes(document), 30000);

  // Buttons with data-copy copy the text of the element whose id they name.
  const offerCopies = (within) => {
    for (const button of within.querySelectorAll("button[data-copy]")) {
      button.onclick = async () => {
        const source = document.getElementById(button.dataset.copy);
        await navigator.clipboard.writeText(source.value ?? source.textContent);
        const text = button.textContent;
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = text; }, 1500);
      };
    }
  };

  const enliven = (within) => { sayTimes(within); offerCopies(within); };
  enliven(document);

  // Checkboxes with data-all check all of their table.
  document.addEventListener("change", (e) => {
    if (!e.target.matches("input[data-all]")) return;
    for (const box of e.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = e.target.checked;
  });

  // Live parts: the server sends the HTML of those that have changed, rendered as the page itself was. One that is in use stays as it is until it is not.
  const path = document.body.dataset.live;
  const state = document.getElementById("stream-state");
  let stream = null;
  let waiting = {}; // parts that could not be replaced yet
  const say = (text, mode) => {
    if (!state) return;
    state.classList.toggle("on", mode === "on");
    state.classList.toggle("off", mode === "off");
    state.querySelector("[data-live-text]").textContent = text;
  };
  const isInUse = (el) => {
    const active = document.activeElement;
    if (active && el.contains(active) && active.matches("input, textarea, select")) return true;
    const selection = getSelection();
    return selection && !selection.isCollapsed && el.contains(selection.anchorNode);
  };
  const controlsOf = (el) => [...el.querySelectorAll("a[href], button, summary, [tabindex]")];
  const replace = (regions) => {
    Object.assign(waiting, regions);
    for (const [name, html] of Object.entries(waiting)) {
      const el = document.getElementById("live-" + name);
      if (el && isInUse(el)) continue;
      delete waiting[name];
      if (!el) continue;
      const active = document.activeElement;
      const focused = active && el.contains(active) ? active : null;
      const controls = controlsOf(el);
      const open = new Map([...el.querySelectorAll("details")].map((d, i) => [d.id || i, d.open]));
      const row = [...el.querySelectorAll("tr.current a[href]")].map((a) => a.getAttribute("href"))[0];
      el.innerHTML = html;
      el.querySelectorAll("details").forEach((d, i) => { d.open = open.get(d.id || i) ?? d.open; });
      if (focused) { // the same control has the focus again, or the one in its place, such as Resume for Pause
        const now = controlsOf(el);
        const same = now.find((c) => focused.id ? c.id === focused.id : focused.hasAttribute("href") ? c.getAttribute("href") === focused.getAttribute("href") : c.outerHTML === focused.outerHTML);
        (same || (now.length === controls.length ? now[controls.indexOf(focused)] : null))?.focus({preventScroll: true});
      }
      if (row) el.querySelector(`a[href="${CSS.escape(row)}"]`)?.closest("tr")?.classList.add("current");
      enliven(el);
    }
  };
  const close = () => { stream?.close(); stream = null; };
  const open = () => {
    if (path === undefined || stream || document.hidden) return;
    stream = new EventSource(`${root}live?page=${encodeURIComponent(path)}`);
    stream.addEventListener("parts", (e) => {
      const message = JSON.parse(e.data);
      replace(message.parts);
      say(`live, ${message.at}`, "on");
    });
    stream.addEventListener("problem", (e) => say(JSON.parse(e.data).title, "off"));
    stream.addEventListener("ended", () => { close(); say("logged out", "off"); location.reload(); });
    stream.onerror = () => say("not connected; trying again", "off");
  };
  document.addEventListener("visibilitychange", () => { if (document.hidden) { close(); say("paused", ""); } else open(); });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();

  // Shortcuts.
  const help = document.getElementById("help");
  document.querySelector("[data-help]")?.addEventListener("click", () => help.showModal());
  const move = (by) => {
    const rows = [...document.querySelectorAll("table[data-rows] tbody tr")];
    if (!rows.length) return;
    const at = rows.findIndex((r) => r.classList.contains("current"));
    rows[at]?.classList.remove("current");
    const next = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
    next.classList.add("current");
    next.scrollIntoView({block: "nearest"});
  };
  let isGoing = false;
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.matches("input, textarea, select") || help.open) return;
    if (isGoing) {
      isGoing = false;
      const link = [...document.querySelectorAll(".bar a[data-key]")].find((a) => a.dataset.key === e.key);
      if (link) { e.preventDefault(); link.click(); }
      return;
    }
    switch (e.key) {
      case "g": isGoing = true; setTimeout(() => { isGoing = false; }, 1500); break;
      case "/": { const field = document.querySelector("main [data-search]") || document.querySelector("[data-search]"); if (field) { e.preventDefault(); field.closest("details:not([open])")?.setAttribute("open", ""); field.focus(); field.select(); } break; }
      case "j": move(1); break;
      case "k": move(-1); break;
      case "Enter": if (e.target === document.body || e.target.id === "main") document.querySelector("tr.current a[href]")?.click(); break;
      case "?": help.showModal(); break;
    }
  });
})();
