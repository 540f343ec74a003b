// Returns a text for each thing that is wrong with the page.
(() => {
  const wrong = [];
  const brief = (el) => el.outerHTML.replace(/\s+/g, " ").slice(0, 160);
  const isSeen = (el) => el.checkVisibility({visibilityProperty: true}) && !el.closest(".hidden, .skip");

  // Each control has a name, and no order of its own.
  for (const el of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")) {
    if (!isSeen(el)) continue;
    const labels = [...(el.labels || [])].map((l) => l.textContent).join(" ");
    if (!(el.getAttribute("aria-label") || labels || el.textContent || el.title || "").trim()) wrong.push("a control has no name: " + brief(el));
  }
  for (const el of document.querySelectorAll("[tabindex]")) if (el.tabIndex > 0) wrong.push("an element has a place of its own in the order of focus: " + brief(el));
  for (const el of document.querySelectorAll("svg[role=img]")) if (!el.getAttribute("aria-label")) wrong.push("a drawing has no name: " + brief(el));
  for (const el of document.querySelectorAll("th")) if (!el.scope) wrong.push("a heading of a table has no scope: " + brief(el));

  // The outline of the page.
  const headings = [...document.querySelectorAll("main h1, main h2, main h3")].filter(isSeen);
  if (headings.filter((h) => h.tagName === "H1").length > 1) wrong.push("there are several h1");
  if (!document.title.includes("· queued")) wrong.push("the title is " + document.title);
  const ids = [...document.querySelectorAll("[id]")].map((el) => el.id);
  for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) wrong.push("several elements have the id " + id);

  // Nothing inline, and nothing that leads elsewhere than to this server, under any prefix.
  for (const el of document.querySelectorAll("*")) {
    if (el.hasAttribute("style")) wrong.push("an element has a style of its own: " + brief(el));
    for (const a of el.attributes) if (a.name.startsWith("on")) wrong.push("an element has a handler: " + brief(el));
    for (const name of ["href", "src", "action"]) {
      const value = el.getAttribute(name);
      if (value && /^(\/|[a-z]+:)/i.test(value)) wrong.push("a reference is not relative: " + brief(el));
    }
  }
  if (document.querySelector("script:not([src]), style")) wrong.push("the page has a script or a style inside");

  // The page is no wider than its window.
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width + 1) {
    const widest = [...document.querySelectorAll("body *")].filter((el) => !el.closest(".scroll, nav, pre, .hidden, .skip") && el.getBoundingClientRect().right > width + 1).pop();
    wrong.push(`the page is ${document.documentElement.scrollWidth} px wide, and the window ${width}: ${widest ? brief(widest) : ""}`);
  }

  // Text can be read: contrast of 4.5, or 3 for large text (WCAG 2.2, 1.4.3).
  const context = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below, opacity) => {
    const a = top[3] * opacity;
    return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a)).concat(1);
  };
  const backdrop = (el) => {
    const layers = [];
    for (let at = el; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below, 1), [255, 255, 255, 1]);
  };
  const opacity = (el) => { let o = 1; for (let at = el; at; at = at.parentElement) o *= parseFloat(getComputedStyle(at).opacity); return o; };
  const luminance = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => {
    const v = c[i] / 255;
    return sum + share * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const told = new Set();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const el = node.parentElement;
    if (!node.textContent.trim() || !isSeen(el) || el.closest("title, dialog:not([open]), [disabled]")) continue;
    const style = getComputedStyle(el);
    const below = backdrop(el);
    const colour = over(rgba(el.closest("svg") ? style.fill : style.color), below, opacity(el));
    const [light, dark] = [luminance(colour), luminance(below)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    const kind = `${el.tagName} ${el.className}`;
    if (ratio < needed && !told.has(kind)) {
      told.add(kind);
      wrong.push(`the contrast of ${JSON.stringify(node.textContent.trim().slice(0, 30))} is ${ratio.toFixed(2)}, less than ${needed}: ${brief(el)}`);
    }
  }
  return wrong;
})()
